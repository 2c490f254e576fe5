"""Precision ``auto``: float32, or bfloat16 where this model's own steps are faster in it here.

Whether bfloat16 pays depends on the processor and on every size: with instructions for it products
take a third of the time, without them up to hundreds of times as long, the more the larger they
are. So nothing but the clock decides. A product with the model's largest matrix is tried first,
from a small part of it upwards, and bfloat16 is given up where a part is slow; then whole steps are
timed in turns, on a copy of the model, before the run begins.
"""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from everyformer.core.devices import synchronise
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.training.config import Precision
from everyformer.training.operations import positions
from everyformer.training.parallel.world import World
from everyformer.training.session import Session
from everyformer.training.step import backward, rows_of

SIDES = (64, 128, 256, 512, 1024, 2048)
"""longest sides of the parts of a product that are tried, one after the other"""
CALLS = 3
"""of a part, of which the quickest counts"""
SLOW = 2.0
"""as many times float32's time, and bfloat16 is given up"""
BEGINS = 1e-4
"""seconds, unless it is no more than these slower: on a processor with tiles a product of 64 takes
0.02 ms to begin in bfloat16, five times what float32 takes in all, and one of 1,024 a quarter"""
PAYS = 0.9
"""share of float32's time below which bfloat16 is worth its lost digits"""
ROUNDS, SECONDS = 6, 10.0
"""more rounds of steps after the first, so far as they take no longer than this"""
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Sides = tuple[int, int, int]
"""of a product: rows, what is summed over, columns"""


def decide(session: Session, dataset: Dataset, say: Callable[[str], None]) -> Precision:
    """The precision of a session's steps: the one that is set, or the faster.

    A machine that is slow in the precision that is set is reported. A choice stays in the run's
    state.
    """
    model, world, state = session.model, session.world, session.state
    given = session.config.precision
    if given == "float32":
        return "float32"
    if given == "auto" and state.precision is not None:
        return state.precision
    batch = rows_of(session, dataset, 0)
    slow = slow_product(largest_product(model, batch, world), world)
    if given == "bfloat16":
        if slow is not None:
            say(f"{slow}: with precision float32, or auto, it would be faster")
        return given
    state.precision, why = ("float32", slow) if slow else _by_steps(session, batch)
    say(f"training in {state.precision}: {why}")
    return state.precision


def _by_steps(session: Session, batch: Batch) -> tuple[Precision, str]:
    """The faster precision for steps on batches like this one, and why; the same for all."""
    config, world = session.config, session.world
    trial: Any = copy.deepcopy(session.model)
    module: Any = torch.compile(trial) if config.compile else trial

    def step(precision: str) -> float:
        start = time.perf_counter()
        backward(module, batch, world, slices=config.accumulate, precision=precision)
        synchronise(world.device)
        return time.perf_counter() - start

    ratio = ratio_of_steps(step, world)
    why = f"a step in bfloat16 takes {ratio:.2f}x the time of one in float32 here"
    if ratio < PAYS:
        return "bfloat16", why
    return "float32", why if ratio > 1 else f"{why}, too little to be worth its digits"


def ratio_of_steps(step: Callable[[str], float], world: World) -> float:
    """Seconds of bfloat16 over those of float32, medians of steps that take turns.

    The first call of each, which claims memory and compiles, does not count.
    """
    for kind in KINDS:
        step(kind)
    times = [[step(kind) for kind in KINDS]]
    [first] = world.from_first([sum(times[0])])
    times += [[step(kind) for kind in KINDS] for _ in range(min(ROUNDS, int(SECONDS / first)))]
    single, half = (statistics.median(column) for column in zip(*times, strict=True))
    return world.from_first([half / single])[0]


def largest_product(model: nn.Module, batch: Batch, world: World) -> Sides | None:
    """Sides of the product of the first process's rows with the model's largest matrix; None: it
    has none."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    if not matrices:
        return None
    columns, inner = max(matrices, key=lambda p: p.numel()).shape
    # all measure the same, whose rows may be more or fewer
    [read] = world.from_first([positions(model, batch)])
    return round(read), inner, columns


def slow_product(sides: Sides | None, world: World) -> str | None:
    """Why bfloat16 is given up, in words: the smallest part of the product that is slow in it."""
    if sides is None:
        return None
    for most in SIDES:
        part = min(sides[0], most), min(sides[1], most), min(sides[2], most)
        single, half = (_seconds(part, kind, world.device) for kind in KINDS.values())
        [ratio, more] = world.from_first([half / single, half - single])
        if ratio > SLOW and more > BEGINS:
            words = " x ".join(map(str, part))
            return f"a product of {words} takes {ratio:.2g}x as long in bfloat16 as in float32 here"
        if part == sides:
            break
    return None


def _seconds(sides: Sides, dtype: torch.dtype, device: torch.device) -> float:
    """Seconds of a product."""
    rows, inner, columns = sides
    a = torch.ones(rows, inner, device=device, dtype=dtype)
    b = torch.ones(inner, columns, device=device, dtype=dtype)
    times = []
    for _ in range(1 + CALLS):
        start = time.perf_counter()
        torch.mm(a, b)
        synchronise(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
