"""Dropout whose random numbers are drawn once, and of each call only where they begin.

    y_g = x_g w_{(i + g) mod P}        for element g of a tensor of at most P elements

The wheel w is a row of P zeros and factors P / n, in an order drawn once and the same in all
processes; n = round(P (1 - rate)) are factors, so that each element stays with that probability, to
1e-6, and the mean of what stays is x. i comes from torch's generator, one number a call where
`torch.nn.functional.dropout` draws one for each element, which costs a CPU a quarter of a small
model's step. A call has one of P patterns. Any two of its elements stay as independently as two
that lie as far apart in a drawn row: to 2e-4. A longer tensor is cut into parts of P, each of which
begins so far after the one before that no two begin alike. Of a tensor of which only some rows are
computed here, g counts the others too (`everyformer.engines.drawing`).

For the backward pass a view of the wheel is kept, no pattern of one's own; a compiled graph keeps i
and turns the wheel again. Other devices take torch's function: there numbers are drawn where they
are used.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.leaving import leaves_torch
from everyformer.engines.drawing import before, draw
from everyformer.engines.ranges import fake

P = 1 << 19
"""entries of a wheel"""
SEED = 20140601
"""of their order"""
STEP = 196_613
"""entries from where one part of a longer tensor begins to where the next does; P and it have no
common factor"""


def dropout(x: Tensor, rate: float) -> Tensor:
    """``x`` without a share ``rate`` of its elements, drawn again, the others scaled up.

    Args:
        rate: from 0 to 1.
    """
    if not turns(x, rate):
        return F.dropout(x, rate)
    place = draw(P)
    if torch.compiler.is_compiling():
        y: Tensor = _turned(x, place, rate)
        return y
    return _times(x, place, rate)


def turns(x: Tensor, rate: float) -> bool:
    """True if `dropout` of ``x`` turns a wheel."""
    on_wheel = x.device.type == "cpu" and x.is_floating_point() and 0 < rate < 1
    return on_wheel and not leaves_torch()


def drawn(size: int, rate: float) -> Callable[[Tensor, int], Tensor]:
    """`dropout` of a tensor of ``size`` entries whose numbers are drawn now, for pieces of it and
    more than once: of a piece and its first entry."""
    numbers = draw(P).tolist()
    first = before(size, numbers)
    return lambda x, entry: _from(x, numbers[0], first + entry, rate)


def _times(x: Tensor, place: Tensor, rate: float) -> Tensor:
    """``x`` times the wheel from ``place`` on, as `draw` gave it."""
    numbers = place.tolist()
    return _from(x, numbers[0], before(x.numel(), numbers), rate)


def _from(x: Tensor, place: int, entry: int, rate: float) -> Tensor:
    """``x`` times the wheel, which turned to ``place`` for entry 0, from an ``entry`` on."""
    count, (part, at) = x.numel(), divmod(entry, P)
    if at + count <= P:
        start = _start(place, part) + at
        return x * wheel(rate, x.dtype)[start : start + count].view(x.shape)
    y: Tensor = _InParts.apply(x, place, part, at, rate)
    return y


class _InParts(torch.autograd.Function):
    """``x`` times what of the wheel's parts, from entry ``at`` of ``part`` on, falls on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, place: int, part: int, at: int, rate: float) -> Tensor:
        ctx.numbers = place, part, at, rate
        w, y = wheel(rate, x.dtype), torch.empty(x.shape, dtype=x.dtype)
        rest, into = x.reshape(-1), y.view(-1)
        while len(rest):
            start, size = _start(place, part) + at, min(P - at, len(rest))
            torch.mul(rest[:size], w[start : start + size], out=into[:size])
            rest, into, part, at = rest[size:], into[size:], part + 1, 0
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _InParts.apply(grad, *ctx.numbers), None, None, None, None


def _start(place: int, part: int) -> int:
    """The beginning of a part of a tensor."""
    return (place + part * STEP) % P


@torch.library.custom_op("everyformer::turned", mutates_args=())
def _turned(x: Tensor, place: Tensor, rate: float) -> Tensor:
    """`_times` as one operation of a graph."""
    return _times(x, place, rate).contiguous()


@_turned.register_fake
def _(x: Tensor, place: Tensor, rate: float) -> Tensor:
    return fake(x)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    _, place, ctx.rate = inputs
    ctx.save_for_backward(place)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return _turned(grad, *ctx.saved_tensors, ctx.rate), None, None


_turned.register_autograd(_differentiate, setup_context=_save)


@lru_cache(maxsize=8)
def wheel(rate: float, dtype: torch.dtype) -> Tensor:
    """(2 P,) w twice in a row, so that any P entries from a place on stand together."""
    count = round(P * (1 - rate))
    with torch.inference_mode(False):
        order = torch.randperm(P, generator=torch.Generator().manual_seed(SEED))
        w = torch.zeros(P, dtype=dtype)
        w[order[:count]] = P / max(count, 1)
        return w.repeat(2)
