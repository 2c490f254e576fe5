"""Calibration: speed and memory of every member, and the steps that a budget in seconds becomes.

All speeds that a comparison reports come from `everyformer.lab.compare.rounds`, as medians with
quartiles. Seconds become steps by one round, the fastest: that in which the members together were
fastest, by the geometric mean of their seconds a step.

Members of one description are one function by two names, and timed once, so that they do not
differ.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyformer.core.config import to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.data.dataset import Dataset
from everyformer.lab.bench.timing import summary
from everyformer.lab.compare import rounds
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.plan import Candidate, job
from everyformer.lab.compare.processes import ended, launch, stopped_by
from everyformer.lab.compare.results import Calibrated
from everyformer.lab.compare.rounds import Timing, TimingRecord
from everyformer.system.plain import to_json
from everyformer.system.signals import GracefulStop
from everyformer.training.config import BUDGETS, TrainingConfig
from everyformer.training.spec import RunSpec


def calibrate(
    config: CompareConfig,
    ready: list[Candidate],
    dataset: Dataset,
    folder: Path,
    stop: GracefulStop,
    say: Callable[[str], None],
) -> dict[str, Calibrated]:
    """Speed and memory by member; one that cannot be trained is left out.

    What an earlier session measured stays; ``say`` is called where something must be measured.
    """
    every = {e.member: _timed_run(config, e) for e in ready if e.config is not None}
    timed = _representatives(ready, every)
    record = TimingRecord(
        rounds=1 if config.training.compile else rounds.ROUNDS,
        budget=config.training.budget,
        fingerprint=dataset.fingerprint,
        runs={name: every[name] for name in timed.values()},
        decode=config.decode,
    )
    record.measured.update(_earlier(folder, record))
    if not record.complete:
        say("timing a few steps of every member, in turn")
    while stop.received is None and not record.complete:
        record.write(folder)
        code = launch("rounds", folder, stop)
        record = TimingRecord.read(folder)
        if stopped_by(code):
            stop.received = stop.received or code - 128
        elif stop.received is not None:
            break
        elif record.at is not None:
            record.measured[record.at] = Timing(ended(code))
        elif code:
            break
    finished = record.complete
    _finalise(record.measured)
    if finished:
        record.write(folder)
    return {
        name: _calibrated(record.measured[one], config.training)
        for name, one in timed.items()
        if one in record.measured and record.measured[one].rounds
    }


def _representatives(ready: list[Candidate], runs: dict[str, RunSpec]) -> dict[str, str]:
    """For each member the first whose data and complete model are the same but for the name."""
    first: dict[str, str] = {}
    return {
        e.member: first.setdefault(
            to_json([to_dict(runs[e.member].data), to_dict(e.config) | {"member": None}]), e.member
        )
        for e in ready
        if e.config is not None
    }


def _timed_run(config: CompareConfig, candidate: Candidate) -> RunSpec:
    """A member's first training, without what would stretch or shorten it."""
    planned = job(config, candidate, config.training.seed, config.training.lr)
    free: dict[str, Any] = {f"budget_{kind}": None for kind in BUDGETS}
    brief = dataclasses.replace(
        planned.run.training,
        steps=config.training.steps or 1,
        evaluate_every=None,
        evaluate_sequences=1,
        checkpoint_every=None,
        **free,
    )
    return dataclasses.replace(planned.run, training=brief)


def _earlier(folder: Path, record: TimingRecord) -> dict[str, Timing]:
    """Earlier measurements of the same trainings, so far as all members were measured together.

    A round that was cut short, or in which a member was missing, is measured again with all; what a
    budget in seconds was worth stays, so that no training has to be made again.
    """
    try:
        earlier = TimingRecord.read(folder)
    except (CheckpointError, ConfigError):
        # there is none, or an earlier version wrote it
        return {}
    if (earlier.rounds, earlier.fingerprint) != (record.rounds, record.fingerprint):
        return {}
    # as plain values, since options that were read from a file are tables
    before, now = (
        {name: to_json(to_dict(run)) for name, run in each.runs.items()}
        for each in (earlier, record)
    )
    known = {
        name: timing
        for name, timing in earlier.measured.items()
        if timing.error is None and before[name] == now.get(name)
    }
    together = min((len(timing.rounds) for timing in known.values()), default=0)
    same = len(known) == len(record.runs) and earlier.decode == record.decode
    count = together if same else 0
    return {n: dataclasses.replace(one, rounds=one.rounds[:count]) for n, one in known.items()}


def _finalise(measured: dict[str, Timing]) -> None:
    """Say what a step of each member costs in the fastest round, once for all sessions."""
    able = {name: timing for name, timing in measured.items() if timing.rounds}
    rounds_of_all = zip(*(timing.rounds for timing in able.values()), strict=False)
    means = [statistics.geometric_mean(r.cost["seconds"] for r in each) for each in rounds_of_all]
    for name, timing in able.items():
        quiet = timing.quiet or timing.rounds[means.index(min(means))].cost
        measured[name] = dataclasses.replace(timing, quiet=quiet)


def _calibrated(timing: Timing, training: TrainingConfig) -> Calibrated:
    quiet, each = timing.quiet, timing.rounds
    assert quiet is not None
    kind, amount = training.budget
    speed, speed_spread = summary([one.cost["tokens"] / one.cost["seconds"] for one in each])
    token = each[-1].decoding
    decoding = {
        context: summary([1000 * one.decoding.seconds[context] for one in each])
        for context in token.seconds
    }
    return {
        "seconds": quiet["seconds"],
        "rounds": [one.cost["seconds"] for one in each],
        "cpu_seconds": quiet["cpu_seconds"],
        "steps": max(1, math.ceil(amount / quiet[kind])),
        "precision": timing.precision,
        "peak_bytes": timing.peak_bytes,
        "tokens_per_second": speed,
        "speed_spread": speed_spread,
        "decode_ms": {context: ms for context, (ms, _) in decoding.items()},
        "decode_spread": {context: ends for context, (_, ends) in decoding.items() if ends},
        "decode_bytes": token.state_bytes,
        "state_bytes": next(reversed(token.state_bytes.values()), None),
        "longest": token.longest,
    }
