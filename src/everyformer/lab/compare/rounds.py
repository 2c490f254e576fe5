"""Rounds: all members of a comparison timed in turn, by one process.

    row       a step of as few rows as it can have, so that one which takes long is known beforehand
    first     two steps, which tell the memory and how many steps fill a round
    round     as many steps of each member as take a hundredth of its training

What else the machine does falls on all members of a round. `TimingRecord` is the file in which
they are written down; where a member crashes the process, its name stands there, and a fresh
process continues with the others (`everyformer.lab.compare.calibration`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from everyformer.core.bounds import Count
from everyformer.core.config import from_dict, to_dict
from everyformer.core.devices import pick_device
from everyformer.data.dataset import Dataset
from everyformer.genes.config import ModelConfig
from everyformer.lab.bench.measure import peak_of
from everyformer.lab.bench.timing import LEAST_SAMPLES, turns
from everyformer.lab.compare.decoding import Decoded, Filled, contexts, decode
from everyformer.system.process import keep_freed_memory, return_freed_memory
from everyformer.system.sealed import read_json, write_json
from everyformer.system.signals import GracefulStop, Stopped
from everyformer.system.status import status
from everyformer.training.config import Precision
from everyformer.training.spec import RunSpec, model_config
from sequence_laws.foreign import FAILURES, describe

if TYPE_CHECKING:
    from everyformer.training.result import TrainResult

FILE, FORMAT = "calibration.json", "everyformer-calibration"
ROUNDS = LEAST_SAMPLES
"""as many as quartiles need; one of members that are compiled"""
FEWEST_STEPS = 2
"""of a round, and of the first timing"""
SHARE, SHORTEST, LONGEST = 0.01, 0.1, 0.5
"""of a training that a round spends on its member, and its bounds in seconds; where one row alone
takes longer, a round is one step"""
MOST_STEPS = 200
"""of a round"""
MOST, ALLOWED = 0.25, 6.0
"""of a training's time that may be spent on timing its member, and seconds that always may be; when
all members together have taken more, further rounds are left out"""

Cost = dict[str, float]
"""of a training step by kind of budget: ``seconds``, ``cpu_seconds`` of all threads, ``tokens``,
``flops``, and ``steps``: 1"""


@dataclass(frozen=True)
class Round:
    """One timing of one member."""

    cost: Cost
    decoding: Decoded
    spent: float
    """seconds that the timing took"""


@dataclass(frozen=True)
class Timing:
    """Measurements of one member, or why it failed."""

    error: str | None = None
    row_seconds: float = 0.0
    """of a row of a step; 0 where that is not known"""
    precision: Precision = "float32"
    """in which it is timed and trained: what was requested, or what was faster the first time"""
    first: Cost = field(default_factory=dict)
    peak_bytes: int | None = None
    rounds: tuple[Round, ...] = ()
    quiet: Cost | None = None
    """of a step while the machine is idle, settled once for all sessions"""

    @property
    def times(self) -> float:
        """Number of times it was timed, the first included; one that failed is not timed again."""
        return math.inf if self.error is not None else 1 + len(self.rounds)

    def training_seconds(self, budget: tuple[str, float]) -> float:
        """About how long a training of this budget takes."""
        kind, amount = budget
        return amount / self.first[kind] * self.first["seconds"]


@dataclass(frozen=True)
class TimingRecord:
    """Trainings to time, and what was measured of each."""

    rounds: int
    """as many are wanted of each member"""
    budget: tuple[str, float]
    fingerprint: str
    """of the data"""
    runs: dict[str, RunSpec]
    decode: tuple[Count, ...] | None = None
    """tokens before those that are timed, as they were requested"""
    precisions: dict[str, Precision] = field(default_factory=dict)
    """what `precision` auto came to"""
    measured: dict[str, Timing] = field(default_factory=dict)
    at: str | None = None
    """the member that is being timed, so that a crash is known as its"""

    @classmethod
    def read(cls, folder: Path) -> TimingRecord:
        """The sheet in ``folder``.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        values = read_json(folder / FILE, FORMAT)
        known = {f.name for f in dataclasses.fields(cls)}
        return from_dict(cls, {name: value for name, value in values.items() if name in known})

    def write(self, folder: Path, at: str | None = None) -> None:
        """Write it, while the member ``at`` is being timed."""
        record = dataclasses.replace(self, at=at)
        write_json(folder / FILE, {"format": FORMAT, **to_dict(record)})

    @property
    def complete(self) -> bool:
        """True if all members that did not fail have had as many rounds, and these are enough, or
        have taken long enough."""
        if not all(name in self.measured for name in self.runs):
            return False
        able = [one for name in self.runs if (one := self.measured[name]).error is None]
        rounds = {len(one.rounds) for one in able}
        if len(rounds) != 1 or 0 in rounds:
            return not able
        spent = sum(timed.spent for one in able for timed in one.rounds)
        allowed = sum(max(MOST * one.training_seconds(self.budget), ALLOWED) for one in able)
        return rounds.pop() >= self.rounds or spent > allowed

    def undecided(self, name: str) -> bool:
        """Whether a member's precision has still to be chosen."""
        auto = self.runs[name].training.precision == "auto"
        return auto and name not in self.precisions and name not in self.measured

    def times(self, name: str) -> float:
        """Number of times a member was timed."""
        return self.measured[name].times if name in self.measured else 0


def main(folder: Path) -> int:
    """Time the members on the sheet in ``folder``, in turn; 143 if a signal stopped it."""
    from everyformer.data import load_dataset

    record = TimingRecord.read(folder)
    first = next(iter(record.runs.values()))
    dataset = load_dataset(first.data, first.task, stored=first.data)
    filled = Filled()
    lengths, device = contexts(record.decode, dataset), pick_device(first.training.device).type
    with GracefulStop("stopping") as stop:
        if any(map(record.undecided, record.runs)):
            return _choose(record, folder, dataset, stop)
        # before any thread has a heap of its own
        return_freed_memory()
        for name in turns(record.runs, record.times, lambda: record.complete):
            if stop.received is not None:
                return 143
            if min(map(record.times, record.runs)) > 0:
                keep_freed_memory()
            record.write(folder, at=name)
            run = record.runs[name]
            run = in_precision(run, record.precisions.get(name, run.training.precision))
            try:
                with status(f"timing a few steps of {name}"):
                    write = partial(decode, contexts=lengths, filled=filled, device=device)
                    known = record.measured.get(name)
                    record.measured[name] = _measure(known, run, dataset, record.budget, write)
            except Stopped as stopped:
                return 128 + stopped.number
        record.write(folder)
    return 143 if stop.received is not None else 0


def _choose(record: TimingRecord, folder: Path, dataset: Dataset, stop: GracefulStop) -> int:
    """Choose the precisions that `precision` auto leaves open, each in a step like those of a
    training; 143 if a signal stopped it.

    Memory is kept as trainings keep it, or claiming it would be most of a step. That leaves holes
    by which a process has larger peaks, so another one goes on.
    """
    keep_freed_memory()
    for name in filter(record.undecided, record.runs):
        if stop.received is not None:
            return 143
        record.write(folder, at=name)
        try:
            result = _steps(record.runs[name], dataset, 1, warm_up=0)
        except Stopped as stopped:
            return 128 + stopped.number
        except FAILURES as error:
            record.measured[name] = Timing(describe(error))
        else:
            record.precisions[name] = result.precision
    record.write(folder)
    return 143 if stop.received is not None else 0


def _measure(
    known: Timing | None,
    run: RunSpec,
    dataset: Dataset,
    budget: tuple[str, float],
    write: Callable[[ModelConfig], Decoded],
) -> Timing:
    """The measurements of a member with a round more, or why it failed; ``write`` times tokens."""
    start = time.perf_counter()
    try:
        if known is None:
            first = _first(run, dataset)
            write(model_config(run, dataset))  # which fills states, for all rounds
            return first
        run = in_precision(run, known.precision)
        seconds = min(max(SHARE * known.training_seconds(budget), SHORTEST), LONGEST)
        steps = max(FEWEST_STEPS, math.ceil(seconds / known.first["seconds"]))
        cost = _few_steps(run, dataset, min(steps, MOST_STEPS), known.row_seconds)
        decoding = write(model_config(run, dataset))
    except FAILURES as error:  # its own training will say it again, with all details
        return Timing(describe(error))
    one = Round(cost, decoding, time.perf_counter() - start)
    return dataclasses.replace(known, rounds=(*known.rounds, one))


def in_precision(run: RunSpec, precision: Precision) -> RunSpec:
    """The training with what ``auto`` came to, or as it is."""
    training = dataclasses.replace(run.training, precision=precision)
    return dataclasses.replace(run, training=training)


def _first(run: RunSpec, dataset: Dataset) -> Timing:
    """A few steps, while nothing that is freed stays with the process, and their memory."""
    row_seconds = _row_seconds(run, dataset)
    timed: list[Cost] = []
    device = pick_device(run.training.device).type
    # also what earlier members left free between blocks in use, into which a small one would fit
    return_freed_memory()
    peak = peak_of(
        lambda: timed.append(_few_steps(run, dataset, FEWEST_STEPS, row_seconds)), device
    )
    return Timing(None, row_seconds, run.training.precision, timed[0], peak)


def _row_seconds(run: RunSpec, dataset: Dataset) -> float:
    """Seconds a row of a step that has as few as it can; 0 of a model that is compiled.

    What is computed once in a process belongs to no member, and is done then.
    """
    training = run.training
    whole = training.compile
    fewer = training if whole else dataclasses.replace(training, batch=training.accumulate)
    one = time_steps(dataclasses.replace(run, training=fewer), dataset, FEWEST_STEPS)
    return 0.0 if whole else one["seconds"] / fewer.batch


def _few_steps(run: RunSpec, dataset: Dataset, steps: int, row_seconds: float) -> Cost:
    """`time_steps`, of which there is one where a row alone takes long."""
    if row_seconds <= LONGEST:
        return time_steps(run, dataset, steps)
    about = round(row_seconds * run.training.batch)
    with status(f"timing one step of {run.member}, about {about} s"):
        return time_steps(run, dataset, 1, warm_up=0)


def time_steps(run: RunSpec, dataset: Dataset, steps: int, warm_up: int = 1) -> Cost:
    """Cost of one of ``steps`` training steps after ``warm_up`` others."""
    result = _steps(run, dataset, steps, warm_up)
    assert result.timed is not None
    return {
        "steps": 1,
        "seconds": result.timed.seconds / result.timed.steps,
        "cpu_seconds": result.timed.cpu_seconds / result.timed.steps,
        "tokens": result.tokens / result.steps,
        "flops": result.flops / result.steps,
    }


def _steps(run: RunSpec, dataset: Dataset, steps: int, warm_up: int) -> TrainResult:
    """A training of so many steps, of a model made for it."""
    from everyformer.training import train
    from everyformer.training.spec import build_run

    training = dataclasses.replace(run.training, steps=warm_up + steps)
    model = build_run(dataclasses.replace(run, training=training), dataset)
    result = train(model, dataset, training, show=False, warm_up=warm_up)
    if result.signal is not None:
        raise Stopped(result.signal)
    return result
