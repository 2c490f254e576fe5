"""One thread or all, whichever takes less time now."""

import os
import time
from collections.abc import Callable
from statistics import fmean

import torch

from everyformer.cli.parsing import say

ROUNDS, SECONDS = 5, 0.5
"""of steps with either number at most, and after which no further round begins"""


def choose_threads(step: Callable[[], object]) -> None:
    """Set torch's threads to one or to all, by a few steps with either in turn, and say so.

    Threads wait for one another, which with other work, or for small models, takes more time
    than they save: up to twelve times as long. Left alone where OMP_NUM_THREADS says how many, and
    on other devices than a CPU a step is the same with both.
    """
    threads = torch.get_num_threads()
    if threads == 1 or "OMP_NUM_THREADS" in os.environ:
        return
    step()
    spent: dict[int, list[float]] = {1: [], threads: []}
    start = time.perf_counter()
    for _ in range(ROUNDS):
        for count, seconds in spent.items():
            torch.set_num_threads(count)
            before = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - before)
        if time.perf_counter() - start > SECONDS:
            break
    one, all_of_them = (1e3 * fmean(seconds) for seconds in spent.values())
    chosen = 1 if one <= all_of_them else threads
    torch.set_num_threads(chosen)
    say(
        f"threads: {chosen}, since what was tried took {one:.3g} ms with one and "
        f"{all_of_them:.3g} ms with {threads} (OMP_NUM_THREADS decides otherwise)"
    )
