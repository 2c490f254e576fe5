"""Growth: operations, bytes and seconds against length, as an exponent with its interval."""

import functools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.flops import count_flops
from sequence_laws.operations import Operations
from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken, NotJudged

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ROUNDS = 5
SLOW = 0.1
"""seconds of a pass"""
CLAIMS = {"constant": 0.0, "linear": 1.0, "quadratic": 2.0}
"""names of exponents that may be claimed"""


class _Bytes(Operations):
    """Counts the bytes of all results, and of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        for part in made:
            if not part._is_view():
                size = part.numel() * part.element_size()
                self.total, self.largest = self.total + size, max(self.largest, size)


def growth(subject: Subject, claim: float | None = None) -> str:
    """Exponents of operations, bytes and seconds of one pass between the two longest lengths.

    Args:
        claim: the exponent that operations and bytes must not exceed.

    Raises:
        LawBroken: they do.
        NotJudged: without a claim the exponents are `said`.
    """
    # torch's counter hangs hooks on what has a gradient, also where none is taken
    model = subject.copy(torch.float32).requires_grad_(False)
    lengths = _lengths(subject, model)
    if len(lengths) < 2:
        raise NotJudged(f"it takes fewer than two of the lengths {LENGTHS}", "undecided")
    counted: dict[str, list[int]] = {"operations": [], "largest tensor": [], "bytes written": []}
    last = lengths[-2:]
    for length in last:
        x = subject.inputs.draw(1, length)
        with torch.no_grad():
            operations = count_flops(functools.partial(subject.run, model, x))
            with _Bytes() as written:
                subject.run(model, x)
        counted["operations"].append(operations)
        counted["largest tensor"].append(written.largest)
        counted["bytes written"].append(written.total)
    found = {what: exponent(last, values) for what, values in counted.items() if all(values)}
    low, middle, high = timed(subject, model, last)
    words = [f"{what} L^{value:.2f}" for what, value in found.items()]
    words.append(f"seconds L^{middle:.1f} (quartiles {low:.1f} to {high:.1f})")
    detail = f"{', '.join(words)} from {last[0]} to {last[1]}"
    if claim is None:
        raise NotJudged(detail, "said")
    # twice the length makes a claim of 1 no more than 2.1 times as much
    over = [what for what, value in found.items() if value > claim + math.log2(1.05)]
    if over:
        raise LawBroken(f"{' and '.join(over)} grow faster than claimed (L^{claim:g}): {detail}")
    return f"{detail}; claimed: L^{claim:g}"


def _lengths(subject: Subject, model: nn.Module) -> list[int]:
    """Those of `LENGTHS` that the model takes, up to the first of which a pass is `SLOW`."""
    taken = list[int]()
    for length in LENGTHS:
        start = time.perf_counter()
        try:
            with torch.no_grad():
                subject.run(model, subject.inputs.draw(1, length))
        except Exception:  # the law of lengths tells how a length is refused
            continue
        taken.append(length)
        if len(taken) > 1 and time.perf_counter() - start > SLOW:
            break
    return taken


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The power of the length by which the last of two values grew."""
    return math.log(values[1] / values[0]) / math.log(lengths[1] / lengths[0])


def timed(subject: Subject, model: nn.Module, lengths: Sequence[int]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of the exponent of seconds, over rounds in which
    both lengths take turns; the first round warms up."""
    exponents = []
    for _ in range(ROUNDS + 1):
        seconds = []
        for length in lengths:
            x = subject.inputs.draw(1, length)
            start = time.perf_counter()
            with torch.no_grad():
                subject.run(model, x)
            seconds.append(time.perf_counter() - start)
        exponents.append(exponent(lengths, seconds))
    low, middle, high = statistics.quantiles(exponents[1:], n=4)
    return low, middle, high
