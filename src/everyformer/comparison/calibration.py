"""Calibration: how fast every member trains and writes, measured with all members in turn.

All speeds and the memory that a comparison tells come from its rounds, each of which times every
member: what else the machine does falls on all of them. Tables tell medians with quartiles. Seconds
become steps by the quietest round of all, of which a member has its usual share: a moment that the
machine gave to one member alone does not count. Members of one description are one function by two
names and measured once, so that they do not differ.

All members are timed in one process (`everyformer.comparison.processes`); where one crashes it, a
fresh process goes on with the others.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from everyformer.benchmark.measure import LEAST_SAMPLES, peak_of
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.decoding import decoding_times
from everyformer.comparison.plan import Entrant, job
from everyformer.comparison.processes import ended, launch, stopped_by
from everyformer.comparison.results import Calibrated, Interval
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError
from everyformer.core.foreign import FAILURES, describe
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.system.allocator import keep_freed_memory, return_freed_memory
from everyformer.system.plain import from_json, to_json
from everyformer.system.pulse import doing
from everyformer.system.sealed import read_json, write_json
from everyformer.system.stopping import Gentle, Stopped
from everyformer.training.config import BUDGETS, TrainingConfig
from everyformer.training.distributed import pick_device
from everyformer.training.spec import RunSpec, model_config

PLAN = ("rounds", "budget", "fingerprint")
"""how it is timed"""
FILE, FORMAT = "calibration.json", "everyformer-calibration"
ROUNDS = LEAST_SAMPLES
"""as many as quartiles need; one of members that are compiled"""
FEWEST_STEPS = 2
"""of a round, and of the one before all, which tells the memory and how many steps fill a round"""
SHARE, SHORTEST, LONGEST = 0.01, 0.1, 0.5
"""of a training that a round spends on its member, and its bounds in seconds; where one row alone
takes longer, a round is one step"""
MOST_STEPS = 200
"""of a round"""
MOST, ALLOWED = 0.25, 6.0
"""of a training's time that may be spent on timing its member, and seconds that always may be; when
all members together have taken more, further rounds are left out"""


def calibrate(
    config: CompareConfig,
    ready: list[Entrant],
    dataset: Dataset,
    folder: Path,
    stop: Gentle,
    say: Callable[[str], None],
) -> dict[str, Calibrated]:
    """What is known of each member's speed; one that cannot be trained is left out.

    What an earlier sitting measured is kept; ``say`` is told where something must be measured.
    """
    every = {e.member: _timed_run(config, e) for e in ready if e.config is not None}
    timed = _representatives(ready, every)
    runs = {name: every[name] for name in timed.values()}
    plan: dict[str, Any] = {
        "rounds": 1 if config.training.compile else ROUNDS,
        "budget": list(config.training.budget),
        "fingerprint": dataset.fingerprint,
    }
    measured = _kept(folder, plan, runs)
    if not _complete(measured, runs, plan):
        say("timing a few steps of every member, in turn")
    while stop.received is None and not _complete(measured, runs, plan):
        _write(folder, plan, runs, measured, None)
        code = launch("calibration", folder, stop)
        values = read_json(folder / FILE, FORMAT)
        measured, at = values["measured"], values["at"]
        if stopped_by(code):
            stop.received = stop.received or code - 128
        elif stop.received is not None:
            break
        elif at is not None:
            measured[at] = {"error": ended(code)}
        elif code:
            break
    finished = _complete(measured, runs, plan)
    _settle(measured)
    if finished:
        _write(folder, plan, runs, measured, None)
    return {
        name: _calibrated(measured[one], config.training)
        for name, one in timed.items()
        if measured.get(one, {}).get("rounds")
    }


def _representatives(ready: list[Entrant], runs: dict[str, RunSpec]) -> dict[str, str]:
    """For each member the first whose data and complete model are the same but for the name."""
    first: dict[str, str] = {}
    return {
        e.member: first.setdefault(
            to_json([to_dict(runs[e.member].data), to_dict(e.config) | {"member": None}]), e.member
        )
        for e in ready
        if e.config is not None
    }


def _timed_run(config: CompareConfig, entrant: Entrant) -> RunSpec:
    """A member's first training, without what would stretch or shorten it."""
    planned = job(config, entrant, config.training.seed, config.training.lr)
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


def _calibrated(found: dict[str, Any], training: TrainingConfig) -> Calibrated:
    rounds, quiet = found["rounds"], found["quiet"]
    kind, amount = training.budget
    speed, speed_spread = _summary([one["tokens"] / one["seconds"] for one in rounds])
    writing = {
        context: _summary([1000 * one["decoding"][context] for one in rounds])
        for context in rounds[0]["decoding"]
    }
    return {
        "seconds": quiet["seconds"],
        "rounds": [one["seconds"] for one in rounds],
        "cpu_seconds": quiet["cpu_seconds"],
        "steps": max(1, math.ceil(amount / quiet[kind])),
        "peak_bytes": found["peak_bytes"],
        "tokens_per_second": speed,
        "speed_spread": speed_spread,
        "decode_ms": {context: ms for context, (ms, _) in writing.items()},
        "decode_spread": {context: ends for context, (_, ends) in writing.items() if ends},
        "state_bytes": found["state_bytes"],
    }


def _summary(values: list[float]) -> tuple[float, Interval | None]:
    """The median, and the quartiles where there are enough values to tell them."""
    if len(values) < LEAST_SAMPLES:
        return statistics.median(values), None
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, [low, high]


def _settle(measured: dict[str, Any]) -> None:
    """Say what a step of each member takes while the machine is quiet, once and for all sittings.

    With t[m, r] seconds a step of member m in round r and the mean g[r] = exp(mean over m of
    log t[m, r]), these are median over r of (t[m, r] / g[r]), times the least g[r].
    """
    rounds = {name: found["rounds"] for name, found in measured.items() if found.get("rounds")}
    means = [
        statistics.geometric_mean(one["seconds"] for one in together)
        for together in zip(*rounds.values(), strict=False)
    ]
    for name, own in rounds.items():
        share = statistics.median(
            one["seconds"] / mean for one, mean in zip(own, means, strict=False)
        )
        quietest = min(own, key=lambda one: one["seconds"])
        measured[name].setdefault("quiet", quietest | {"seconds": share * min(means)})


def _complete(measured: dict[str, Any], runs: Iterable[str], plan: dict[str, Any]) -> bool:
    """Whether all members that did not fail have had as many rounds, and these are enough, or have
    taken long enough."""
    if not all(name in measured for name in runs):
        return False
    able = [found for name in runs if "error" not in (found := measured[name])]
    rounds = {len(found["rounds"]) for found in able}
    if len(rounds) != 1 or 0 in rounds:
        return not able
    spent = sum(one["spent"] for found in able for one in found["rounds"])
    allowed = sum(max(MOST * _training_seconds(found, plan), ALLOWED) for found in able)
    return rounds.pop() >= plan["rounds"] or spent > allowed


def _training_seconds(found: dict[str, Any], plan: dict[str, Any]) -> float:
    """About how long a training of this budget takes."""
    (kind, amount), first = plan["budget"], found["first"]
    return float(amount / first[kind] * first["seconds"])


def _kept(folder: Path, plan: dict[str, Any], runs: dict[str, RunSpec]) -> dict[str, Any]:
    """Earlier measurements of the same trainings, so far as all members were measured together.

    A round that was cut short, or in which a member was missing, is measured again with all; what a
    budget in seconds was worth stays, so that no training has to be made again.
    """
    try:
        values = read_json(folder / FILE, FORMAT)
    except CheckpointError:
        return {}
    if any(values.get(name) != plan[name] for name in PLAN if name != "budget"):
        return {}
    now = {name: from_json(to_json(to_dict(run))) for name, run in runs.items()}
    same = {name for name, run in values["runs"].items() if run == now.get(name)}
    kept = {
        name: found
        for name, found in values["measured"].items()
        if name in same and "error" not in found
    }
    together = min(len(found["rounds"]) for found in kept.values()) if kept else 0
    for found in kept.values():
        found["rounds"] = found["rounds"][: together if len(kept) == len(runs) else 0]
    return kept


def _write(
    folder: Path,
    plan: dict[str, Any],
    runs: dict[str, RunSpec],
    measured: dict[str, Any],
    at: str | None,
) -> None:
    write_json(
        folder / FILE,
        {
            "format": FORMAT,
            **plan,
            "runs": {name: to_dict(run) for name, run in runs.items()},
            "measured": measured,
            "at": at,
        },
    )


def main(folder: Path) -> int:
    """Time the members that ``FOLDER/calibration.json`` names; 143 if a signal stopped it."""
    from everyformer.data import load_dataset

    values = read_json(folder / FILE, FORMAT)
    runs = {name: from_dict(RunSpec, run) for name, run in values["runs"].items()}
    plan = {name: values[name] for name in PLAN}
    measured: dict[str, Any] = values["measured"]
    first = next(iter(runs.values()))
    dataset = load_dataset(first.data, first.task)
    # before any thread has a heap of its own
    return_freed_memory()
    with Gentle("stopping") as stop:
        while not _complete(measured, runs, plan):
            number = min(_timings(measured, name) for name in runs)
            if number > 0:
                keep_freed_memory()
            for name, run in runs.items():
                if stop.received is not None:
                    return 143
                if _timings(measured, name) > number:
                    continue
                _write(folder, plan, runs, measured, name)
                try:
                    with doing(f"timing a few steps of {name}"):
                        _measure(measured, name, run, dataset, plan)
                except Stopped as stopped:
                    return 128 + stopped.number
        _write(folder, plan, runs, measured, None)
    return 143 if stop.received is not None else 0


def _timings(measured: dict[str, Any], name: str) -> float:
    """How often a member was timed, the first time too; one that failed is not timed again."""
    found = measured.get(name)
    if found is None:
        return 0
    return math.inf if "error" in found else 1 + len(found["rounds"])


def _measure(
    measured: dict[str, Any], name: str, run: RunSpec, dataset: Dataset, plan: dict[str, Any]
) -> None:
    """Add a round to what is known of a member, or why it failed."""
    found, start = measured.get(name), time.perf_counter()
    try:
        if found is None:
            measured[name] = _first(run, dataset)
            return
        seconds = min(max(SHARE * _training_seconds(found, plan), SHORTEST), LONGEST)
        steps = max(FEWEST_STEPS, math.ceil(seconds / found["first"]["seconds"]))
        one = _few_steps(run, dataset, min(steps, MOST_STEPS), found["row_seconds"])
        decoding = _writing(run, dataset)[0]
    except FAILURES as error:  # its own training will say it again, with all details
        measured[name] = {"error": describe(error)}
        return
    spent = time.perf_counter() - start
    found["rounds"].append({**one, "decoding": decoding, "spent": spent})


def _first(run: RunSpec, dataset: Dataset) -> dict[str, Any]:
    """A few steps, while nothing that is freed stays with the process, and their memory."""
    row_seconds = _row_seconds(run, dataset)
    timed: list[dict[str, float]] = []
    device = pick_device(run.training.device).type
    peak = peak_of(
        lambda: timed.append(_few_steps(run, dataset, FEWEST_STEPS, row_seconds)), device
    )
    return {
        "row_seconds": row_seconds,
        "first": timed[0],
        "peak_bytes": peak,
        "state_bytes": _writing(run, dataset)[1],
        "rounds": [],
    }


def _row_seconds(run: RunSpec, dataset: Dataset) -> float:
    """Seconds a row of a step that has as few as it can; 0 of a model that is compiled or plays.

    What is computed once in a process is no member's own, and is done then.
    """
    training = run.training
    whole = training.compile or TASKS[dataset.task].interacts
    fewer = training if whole else dataclasses.replace(training, batch=training.accumulate)
    one = time_steps(dataclasses.replace(run, training=fewer), dataset, FEWEST_STEPS)
    return 0.0 if whole else one["seconds"] / fewer.batch


def _few_steps(run: RunSpec, dataset: Dataset, steps: int, row_seconds: float) -> dict[str, float]:
    """`time_steps`, of which there is one where a row alone takes long."""
    if row_seconds <= LONGEST:
        return time_steps(run, dataset, steps)
    about = round(row_seconds * run.training.batch)
    with doing(f"timing one step of {run.member}, about {about} s"):
        return time_steps(run, dataset, 1, warm_up=0)


def _writing(run: RunSpec, dataset: Dataset) -> tuple[dict[str, float], int | None]:
    """`decoding_times` of a model that writes texts."""
    if not TASKS[dataset.task].continues:
        return {}, None
    return decoding_times(model_config(run, dataset))


def time_steps(run: RunSpec, dataset: Dataset, steps: int, warm_up: int = 1) -> dict[str, float]:
    """Cost of one of ``steps`` training steps after ``warm_up`` others, by kind of budget.

    ``seconds``, ``cpu_seconds`` of all threads, ``tokens``, ``flops``, and ``steps``: 1.
    """
    from everyformer.data.environments import EnvironmentDataset
    from everyformer.training import train
    from everyformer.training.rollouts import minibatches
    from everyformer.training.spec import build_run

    if isinstance(dataset, EnvironmentDataset):
        # whole turns, in which playing has its share
        turn = minibatches(run.model.policy, dataset.number, run.training.batch)
        steps = math.ceil(steps / turn) * turn
    training = dataclasses.replace(run.training, steps=warm_up + steps)
    model = build_run(dataclasses.replace(run, training=training), dataset)
    result = train(model, dataset, training, show=False, warm_up=warm_up)
    timed = result.timed
    if result.signal is not None:
        raise Stopped(result.signal)
    assert timed is not None
    return {
        "steps": 1,
        "seconds": timed.seconds / timed.steps,
        "cpu_seconds": timed.cpu_seconds / timed.steps,
        "tokens": result.tokens / result.steps,
        "flops": result.flops / result.steps,
    }
