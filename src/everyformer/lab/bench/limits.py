"""The least time that a step could take here: what it reads, computes and begins.

    limit = max(bytes read / bandwidth, flops / speed of products, operations * 2 us)

Bandwidth and speed are measured in the same process with the same threads, and 2 us are what an
operation takes to begin on a CPU; a compiled program begins none. A token should take no more than
a few times its limit.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from everyformer.core.dispatch import watched
from everyformer.core.wording import pluralise
from everyformer.lab.bench.timing import seconds_of
from sequence_laws.flops import count_flops
from sequence_laws.operations import Counter

BEGIN = 2e-6
"""seconds that an operation takes before it computes"""
LARGE = 1 << 25
"""numbers that are read to measure a bandwidth: 128 MiB, more than caches hold"""
SQUARE = 1024
"""rows and columns of matrices that are multiplied to measure a speed"""
TRIES = 7


def least_seconds(counted: Counter, device: str) -> float:
    """The limit of the operations that were ``counted``."""
    return max(causes(counted, device).values())


def causes(
    counted: Counter, device: str, flops: int = 0, compiled: bool = False
) -> dict[str, float]:
    """Causes of a limit, and the seconds of each; of a ``compiled`` program without beginnings."""
    speed, found = bandwidth(device), dict[str, float]()
    found[f"{counted.read / 1e6:.3g} MB at {speed / 1e9:.3g} GB/s"] = counted.read / speed
    if flops:
        peak = products(device)
        found[f"{flops / 1e9:.3g} GFLOP at {peak / 1e9:.3g} a second"] = flops / peak
    if not compiled:
        found[f"{counted.operations:,} operations to begin"] = counted.operations * BEGIN
    return found


def account(
    step: Callable[[], Any], seconds: float, *, tokens: int = 1, outside: float = 0.0,
    compiled: bool = False, spared: int = 0, device: str = "cpu",
) -> str:  # fmt: skip
    """Engine, time of a token, share of its limit, and the largest part of the rest, in a line.

    Args:
        step: does the work of as many ``tokens`` once more, without a compiler, to be counted.
        seconds: a token took. outside: of these, beside the model.
        spared: bytes that ``step`` reads, but what ran did not.
    """
    with torch.inference_mode(), Counter() as counted, watched() as ways:
        step()
    with torch.no_grad():
        flops = count_flops(step)
    counted.read -= spared
    found = causes(counted, device, flops, compiled)
    rest = {name: cost / tokens for name, cost in found.items()}
    cause = max(rest, key=lambda name: rest[name])
    least = rest.pop(cause)
    rest |= {"choosing tokens": outside, "operations above their limit": seconds - least - outside}
    what = max(rest, key=lambda name: rest[name])
    engines = dict.fromkeys(f"{way.engine}: {way.name}" for way in ways)
    engine = "a compiled program" if compiled else "; ".join(engines) or "operations of torch"
    threads = f", {pluralise(torch.get_num_threads(), 'thread')}" if device == "cpu" else ""
    return (
        f"ran {engine}{threads}: {1e3 * seconds:.3g} ms a token, the limit {1e3 * least:.3g} "
        f"({cause}), {least / seconds:.0%}; most of the rest, {1e3 * rest[what]:.3g} ms: {what}"
    )


@functools.cache
def bandwidth(device: str) -> float:
    """Bytes a second that a sum over much memory reads, the best of several."""
    numbers = torch.ones(LARGE, device=device)
    best = min(seconds_of(numbers.sum, device) for _ in range(TRIES))
    return numbers.numel() * numbers.element_size() / best


@functools.cache
def products(device: str) -> float:
    """Operations a second of a product of large matrices in float32, the best of several."""
    a, b = torch.ones(2, SQUARE, SQUARE, device=device)
    best = min(seconds_of(lambda: a @ b, device) for _ in range(TRIES))
    return 2 * SQUARE**3 / best
