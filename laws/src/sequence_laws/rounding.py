"""Rounding: the part of a difference that is arithmetic, without a tolerance that anyone tuned.

A law compares two ways to the same numbers. Their difference in float64 is either rounding, then it
is about 2^-29 of what float32 rounds at the same place, or it is real, then it is as large in any
dtype. The bound lies half-way between the two, in orders of magnitude:

    bound = e 2^(-29/2),    e = median |y32 - y64| of the same model on the same inputs

which leaves a factor of 20,000 on either side. The model itself is the measure of its depth and
width. Models that compute parts in float32 whatever they are given (norms, angles, softmax) would
round in float64 as they do in float32, so that `doubled` lets them compute these parts in float64.
A model that has float32 alone is held to EPS32 2^(29/2) of its largest output, 0.3%.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GAP = 2.0 ** (-29 / 2)
"""of the rounding of float32; half-way, in orders of magnitude, to that of float64"""
EPS32 = 2.0**-23
FILLER = 1e4
"""from which on a number that is the same everywhere is not computed"""
ROOM = {torch.float64: EPS32 / GAP, torch.float32: EPS32 / GAP, torch.bfloat16: 0.06}
"""of the largest output, where nothing wider tells what rounding is; of float64 what a file has,
which computes in float32"""


class _Doubled(TorchDispatchMode):
    """Every operation that asks for float32 gives float64."""

    supports_higher_order_operators = True  # flex attention is one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # or torch imports its compiler, which takes seconds
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if kwargs and kwargs.get("dtype") is torch.float32:
            kwargs = {**kwargs, "dtype": torch.float64}
        places = [torch.float64 if arg is torch.float32 else arg for arg in args]
        return func(*places, **(kwargs or {}))


@contextlib.contextmanager
def doubled() -> Iterator[None]:
    """Within it, float32 is float64: in conversions, new tensors and the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Doubled():
            yield
    finally:
        torch.set_default_dtype(before)


def computed(y: Tensor) -> Tensor:
    """Which channels (C,) of outputs are more than a filler: one huge number everywhere, as the
    least of its dtype, for logits that stand for no token. All, where all are."""
    every = torch.ones(y.shape[-1:], dtype=torch.bool, device=y.device)
    if y.dim() < 2:
        return every
    rows = y.detach().flatten(0, -2)
    filler = (rows[0].abs() >= FILLER) & (rows == rows[0]).all(0)
    return every if len(rows) < 2 or filler.all() else ~filler


def largest(y: Tensor) -> float:
    """The largest output, fillers aside."""
    y = y.detach()
    return float(y[..., computed(y)].abs().max())


def rounding(single: Tensor, double: Tensor) -> float:
    """Rounding of float32: the median of |y32 - y64|, of which single discrete choices that fall
    otherwise are no part; at least one unit of the largest output, fillers aside."""
    single, double = single.detach().double(), double.detach().double()
    if double.dim() > 1:
        kept = computed(double)
        single, double = single[..., kept], double[..., kept]
    error = (single - double).abs()
    unit = EPS32 * float(double.abs().max())
    return max(float(error.median()), unit) if error.numel() else unit
