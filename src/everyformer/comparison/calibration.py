"""Calibration: how fast every member trains, measured with members in turn before any is trained.

A budget in seconds is turned into steps by it, so that what else the machine does cannot decide
who learns most: each of several rounds times every member, and a member's quietest round counts.

All members are timed in one process (`everyformer.comparison.processes`); where one crashes it, a
fresh process goes on with the others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyformer.benchmark.measure import memory_peak
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.plan import Entrant, job
from everyformer.comparison.processes import ended, launch, stopped_by
from everyformer.comparison.results import Calibrated
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError
from everyformer.core.foreign import FAILURES, describe
from everyformer.core.pulse import doing
from everyformer.core.sealed import read_json, write_json
from everyformer.core.stopping import Gentle, Stopped
from everyformer.data.dataset import Dataset
from everyformer.training.config import BUDGETS, TrainingConfig
from everyformer.training.spec import RunSpec

PLAN = ("rounds", "round_seconds", "most_seconds", "fingerprint")
"""how it is timed"""
FILE, FORMAT = "calibration.json", "everyformer-calibration"
ROUNDS = 3
"""that count, of a budget in seconds; without one a member is timed once, for the plan"""
FIRST_STEPS = 2
"""timed in the round before those, which says how many steps fill a round"""
SHARE, SHORTEST, LONGEST = 0.01, 0.1, 0.5
"""of a budget that a round spends on a member, and its bounds in seconds"""
MOST_STEPS = 200
"""of a round"""
MOST = 0.25
"""of a budget in seconds that is spent on timing a member; then further rounds are left out"""


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
    runs = {e.member: _timed_run(config, e) for e in ready if e.config is not None}
    budget = config.training.budget_seconds
    rounds = 0 if budget is None else 1 if config.training.compile else ROUNDS
    spent = min(max(SHARE * (budget or 0), SHORTEST), LONGEST)
    plan: dict[str, Any] = {
        "rounds": rounds,
        "round_seconds": spent,
        "most_seconds": MOST * (budget or 0.0),
    }
    plan["fingerprint"] = dataset.fingerprint
    measured = _kept(folder, plan, runs)
    if not all(_complete(measured, name, plan) for name in runs):
        say("timing a few steps of every member, in turn")
    while stop.received is None and any(not _complete(measured, name, plan) for name in runs):
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
    return {
        name: _calibrated(found, config.training)
        for name, found in measured.items()
        if name in runs and _complete(measured, name, plan) and "error" not in found
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
    rounds = found["rounds"] or [found["first"]]
    quietest = min(rounds, key=lambda one: one["seconds"])
    kind, amount = training.budget
    return {
        "seconds": quietest["seconds"],
        "rounds": [one["seconds"] for one in rounds],
        "cpu_seconds": quietest["cpu_seconds"],
        "steps": max(1, math.ceil(amount / quietest[kind])),
        "peak_bytes": found["peak_bytes"],
    }


def _complete(measured: dict[str, Any], name: str, plan: dict[str, Any]) -> bool:
    """Whether a member has failed, has had its rounds, or has taken long enough."""
    found = measured.get(name)
    if found is None or "error" in found:
        return found is not None
    return len(found["rounds"]) >= plan["rounds"] or found["spent"] > plan["most_seconds"]


def _kept(folder: Path, plan: dict[str, Any], runs: dict[str, RunSpec]) -> dict[str, Any]:
    """Earlier measurements of the same trainings."""
    try:
        values = read_json(folder / FILE, FORMAT)
    except CheckpointError:
        return {}
    if values["fingerprint"] != plan["fingerprint"]:
        return {}
    now = {name: json.loads(json.dumps(to_dict(run))) for name, run in runs.items()}
    same = {name for name, run in values["runs"].items() if run == now.get(name)}
    return {
        name: found
        for name, found in values["measured"].items()
        if name in same and "error" not in found
    }


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
    with Gentle("stopping") as stop:
        for number in range(plan["rounds"] + 1):
            for name, run in runs.items():
                if stop.received is not None:
                    return 143
                if _complete(measured, name, plan) or _rounds(measured, name) > number:
                    continue
                _write(folder, plan, runs, measured, name)
                try:
                    with doing(f"timing a few steps of {name}"):
                        _measure(measured, name, run, dataset, plan["round_seconds"])
                except Stopped as stopped:
                    return 128 + stopped.number
        _write(folder, plan, runs, measured, None)
    return 143 if stop.received is not None else 0


def _rounds(measured: dict[str, Any], name: str) -> int:
    """How often a member was timed, the first time too."""
    found = measured.get(name)
    return 0 if found is None else 1 + len(found["rounds"])


def _measure(
    measured: dict[str, Any], name: str, run: RunSpec, dataset: Dataset, seconds: float
) -> None:
    """Add a round of about so many seconds to what is known of a member, or why it failed."""
    found, steps = measured.get(name), FIRST_STEPS
    if found is not None:
        steps = min(max(FIRST_STEPS, math.ceil(seconds / found["first"]["seconds"])), MOST_STEPS)
    start = time.perf_counter()
    try:
        step = time_steps(run, dataset, steps)
    except FAILURES as error:  # its own training will say it again, with all details
        measured[name] = {"error": describe(error)}
        return
    if found is None:
        found = measured[name] = {"first": step, "rounds": [], "spent": 0.0}
        found["peak_bytes"] = memory_peak()
    else:
        found["rounds"].append(step)
    found["spent"] += time.perf_counter() - start


def time_steps(run: RunSpec, dataset: Dataset, steps: int) -> dict[str, float]:
    """What one of ``steps`` training steps after warm-up takes, by kind of budget.

    ``seconds``, ``cpu_seconds`` of all threads, ``tokens``, ``flops``, and ``steps``: 1.
    """
    from everyformer.data.environments import EnvironmentDataset
    from everyformer.training import train
    from everyformer.training.loop import WARM_UP_STEPS
    from everyformer.training.rollouts import minibatches
    from everyformer.training.spec import build_run

    if isinstance(dataset, EnvironmentDataset):
        # whole turns, in which playing has its share
        turn = minibatches(run.model.policy, dataset.number, run.training.batch)
        steps = math.ceil(steps / turn) * turn
    training = dataclasses.replace(run.training, steps=WARM_UP_STEPS + steps)
    model = build_run(dataclasses.replace(run, training=training), dataset)
    result = train(model, dataset, training, show=False)
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
