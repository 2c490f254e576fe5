"""Denominators of kernel attention, and the guards of those that may be near 0."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from everyformer.core.leaving import leaves_torch

EMPTY = {torch.float32: 1e-28, torch.float64: 1e-280}
"""a sum of weights below this has lost its digits, and its gradient would leave the dtype"""


class Denominator(NamedTuple):
    """A guard of denominators d, which may be near 0: the number that averages are divided by."""

    kind: Literal["positive", "signed"] = "positive"
    """positive: d + eps, and rows that see no weight at all give 0. signed (features that may be
    negative): sign(d) max(|d|, eps), relative to the largest e^{c_s} prod g where there are levels
    or gates. Positive with an eps needs keys without levels and gates: sums are known up to a
    factor with them."""
    eps: float = 0.0


POSITIVE = Denominator()


def divided(sums: Tensor, guard: Denominator) -> tuple[Tensor, Tensor]:
    """Numerators over guarded denominators, and the latter (..., 1)."""
    total = sums[..., -1:]
    if guard.kind == "positive":
        total = total + guard.eps if guard.eps else total
        total = torch.nn.functional.threshold(total, EMPTY[total.dtype], math.inf)
    else:
        apart = total.abs().clamp(min=guard.eps)
        # ONNX has no sign of a zero
        exports = leaves_torch()
        total = torch.where(total < 0, -apart, apart) if exports else apart.copysign(total)
    return sums[..., :-1] / total, total


def fixed(total: Tensor, guard: Denominator) -> Tensor | None:
    """Flags of guarded denominators that do not move with the sum; None: none are."""
    return total.abs() <= guard.eps if guard.kind == "signed" else None
