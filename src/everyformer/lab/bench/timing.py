"""Times: named calls in interleaved rounds after a warm-up, and their medians and quartiles.

What else a machine does falls on all calls of a round. A short call is repeated in its turn, so
that neither the clock nor the start of a device's work counts.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from everyformer.core.devices import synchronise

Call = Callable[[], Any]
Name = TypeVar("Name")
STEADY = 0.1
"""of the median: how far quartiles of steady times lie from it"""
LEAST_SAMPLES, PATIENCE = 5, 5
"""times that say something, and how often the time for a call may be spent on it"""
TURN = 0.002
"""seconds that a call is repeated for in its turn, if it takes less"""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, once a round."""

    values: list[float]
    steady: bool
    """whether the quartiles are near the median"""


def turns(
    names: Iterable[Name], times: Callable[[Name], float], done: Callable[[], bool]
) -> Iterator[Name]:
    """Rounds: in each, those of ``names`` that had the fewest ``times``, until ``done``."""
    names = list(names)
    while names and not done():
        fewest = min(map(times, names))
        for name in names:
            if times(name) <= fewest:
                yield name


def timed(calls: Mapping[Name, Call], seconds: float, device: str) -> dict[Name, Times]:
    """Times of ``calls``, which were called before, in rounds until all are steady.

    Args:
        seconds: least time that is spent on a call; where times scatter, up to `PATIENCE` times it.
    """
    values: dict[Name, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()

    def done() -> bool:
        spent = (time.perf_counter() - start) / max(1, len(calls))
        if min(map(len, values.values()), default=LEAST_SAMPLES) < LEAST_SAMPLES:
            return False
        steady = all(map(is_steady, values.values())) and spent > seconds
        return steady or spent > PATIENCE * seconds

    for name in turns(calls, lambda name: len(values[name]), done):
        repeats = math.ceil(TURN / max(values[name][-1], 1e-9)) if values[name] else 1
        values[name].append(seconds_of(calls[name], device, repeats))
    return {name: Times(each, is_steady(each)) for name, each in values.items()}


def seconds_of(call: Call, device: str, repeats: int = 1) -> float:
    """Mean seconds of a call that is made so often, until the device has done it."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / repeats


def is_steady(values: Sequence[float]) -> bool:
    """True if the quartiles are within 10% of the median."""
    points = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    low, median, high = torch.tensor(values, dtype=torch.float64).quantile(points).tolist()
    return max(median - low, high - median) <= STEADY * median


def summary(values: Sequence[float]) -> tuple[float, list[float] | None]:
    """The median, and the quartiles where there are enough values for them.

    Quartiles are of all values that there could be, not of those that were measured: those of five
    lie halfway between the two outermost, so that equal functions are told apart 3 times of 100
    (by those of the values 21 times, and of three values 10 times).
    """
    if len(values) < LEAST_SAMPLES:
        return statistics.median(values), None
    low, median, high = statistics.quantiles(values, n=4)
    return median, [low, high]
