"""Cost: operations and bytes against length, as an exponent; of a deep look seconds, too, with
their interval."""

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
from sequence_laws.verdict import Inapplicable, LawBroken

ROUNDS = 5
SLOW = 0.1
"""seconds of a pass"""
CLAIMS = {"constant": 0.0, "linear": 1.0, "quadratic": 2.0}
"""names of exponents that may be claimed"""


COUNTED = ("operations", "largest tensor", "bytes written")


class _Bytes(Operations):
    """Counts the bytes of all results, and of the largest."""

    inside = True

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        for part in made:
            if not part._is_view():
                size = part.numel() * part.element_size()
                self.total, self.largest = self.total + size, max(self.largest, size)


def cost(subject: Subject, claim: float | None = None) -> str:
    """Exponents of operations and bytes of one pass, and in a deep look of its seconds, between the
    two longest lengths; of a subject with `claims` those of a pass with its gradients.

    Args:
        claim: the exponent that operations and bytes must not exceed.

    Raises:
        LawBroken: they do, or are not as a subject claims.
        Inapplicable: without a claim the exponents are `reported`.
    """
    # twice the length makes a claim of 1 no more than 2.1 times as much
    most = math.inf if claim is None else claim + math.log2(1.05)
    bounds = subject.claims or dict.fromkeys(COUNTED, (-math.inf, most))
    model = subject.copy(torch.float32)
    lengths = subject.spans if subject.claims else _lengths(subject, model)
    if len(lengths) < 2:
        raise Inapplicable(f"it takes fewer than two of the lengths {subject.spans}", "undecided")
    last = lengths[-2:]
    counts = [_count(subject.of_length(n), n) for n in last]
    counted = dict(zip(COUNTED, zip(*counts, strict=True), strict=True))
    found = {what: exponent(last, values) for what, values in counted.items() if all(values)}
    words = [f"{what} L^{value:.2f}" for what, value in found.items()]
    if subject.depth == "deep" and not subject.claims:
        low, middle, high = timed(subject, model, last)
        words.append(f"seconds L^{middle:.1f} (quartiles {low:.1f} to {high:.1f})")
    detail = f"{', '.join(words)} from {last[0]} to {last[1]}"
    if claim is None and not subject.claims:
        raise Inapplicable(detail, "reported")
    for off, way in (1, "faster"), (0, "slower"):
        wrong = [
            what
            for what, value in found.items()
            if what in bounds and (value > bounds[what][1] if off else value < bounds[what][0])
        ]
        if wrong:
            claimed = ", ".join(f"L^{bounds[what][off]:.2g}" for what in wrong)
            raise LawBroken(f"{' and '.join(wrong)} grow {way} than claimed ({claimed}): {detail}")
    return f"{detail}; claimed: " + (f"L^{claim:g}" if claim is not None else "by its row")


def _count(subject: Subject, length: int) -> tuple[int, int, int]:
    """Operations, bytes of the largest tensor and of all that are written, of one pass; of a
    subject that claims them with gradients."""
    learns = bool(subject.claims)
    # torch's counter hangs hooks on what has a gradient, also where none is taken
    model = subject.copy(torch.float32).requires_grad_(learns)

    def work() -> None:
        x = subject.placed(subject.inputs.draw(1, length))
        if learns and x.is_floating_point():
            x.requires_grad_()
        with torch.set_grad_enabled(learns):
            y = subject.run(model, x)
            if learns:
                y.sum().backward()

    operations = count_flops(work)
    with _Bytes() as written:
        work()
    return operations, written.largest, written.total


def _lengths(subject: Subject, model: nn.Module) -> list[int]:
    """Those of its `spans` that the model takes, up to the first of which a pass is `SLOW`."""
    taken = list[int]()
    for length in subject.spans:
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
