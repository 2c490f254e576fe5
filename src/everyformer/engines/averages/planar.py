"""Softmax averages over a picture, with a bias on a square around each query.

    o_t = sum_t' p V_t',   p = softmax over t' of K_t' + [t' in the square around t] b_{t'-t}

The square takes a depth-wise convolution with exp(b). What lies outside falls into four strips: the
lines above and below the square, and left and right of it the rest of its own lines. All terms are
positive, so nothing is subtracted and no denominator can vanish. Without causality the largest key
serves as the reference; only a bias beyond the range of ``ranges`` needs the exact path, `dense`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from everyformer.engines.averages.dense import _dense_average, _dense_average_backward
from everyformer.engines.averages.running import inputs_gradient, reference_of, sums_gradient
from everyformer.engines.operators import applied, operator
from everyformer.engines.ranges import fake, full_precision, returned, widened


def planar_average(k: Tensor, v: Tensor, kernel: Tensor, *, lines: int) -> Tensor:
    """Averages of ``v`` over all positions of a picture, line by line.

    Args:
        k: (B, S, H, K) keys, K = V or 1; -inf hides a position. S is a multiple of ``lines``.
        v: (B, S, H, V) values.
        kernel: (H, s, s), s odd: entry [i, j] is added to the key i - s // 2 lines below and
            j - s // 2 columns to the right of the query.

    Returns:
        (B, S, H, V) in v's dtype; zero where nothing is seen.
    """
    o, _ = applied(_planar_average, k, v, kernel, lines)
    return o


def _averages(k: Tensor, v: Tensor, kernel: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    with full_precision(k):
        wide, values = widened(k), v.shape[-1]
        kernel = kernel.to(wide.dtype)
        reference = reference_of(wide, kernel, causal=False)
        if reference is None:
            w = _pairs(kernel, lines, k.shape[1])
            o, total, _ = applied(_dense_average, k, v, w, None, None, False, False)
            return o, total
        x = _products(wide, widened(v), reference, lines)
        y = _convolve(x, kernel.exp()) + _outside(x, kernel.shape[-1])
        y = _tokens(y, k.shape[2])
        total = y[..., values:]
        return returned(y[..., :values] / total, v), total.contiguous()


def _gradients(
    k: Tensor, v: Tensor, kernel: Tensor, o: Tensor, total: Tensor, grad_o: Tensor, lines: int
) -> tuple[Tensor, Tensor, Tensor]:
    with full_precision(k):
        wide = widened(k)
        taps = kernel.to(wide.dtype)
        reference = reference_of(wide, taps, causal=False)
        if reference is None:
            w = _pairs(taps, lines, k.shape[1])
            none = k.new_empty(0)
            grads = _dense_average_backward(k, v, w, None, None, o, total, none, grad_o, False)
            dk, dv, dw, _ = grads
            return dk, dv, returned(_to_taps(dw, taps, lines), kernel)
        g, c = sums_gradient(o, grad_o, k.shape[-1])
        x = _products(wide, widened(v), reference, lines)
        y = _planes(torch.cat([g / total, c / total], -1), lines)
        dx = _convolve(y, taps.exp().flip(1, 2)) + _outside(y, taps.shape[-1])
        shape = (x.shape[1], 1, *taps.shape[1:])
        dtaps = conv2d_weight(x, shape, y, padding=taps.shape[-1] // 2, groups=x.shape[1])
        dtaps = dtaps.view(taps.shape[0], -1, *taps.shape[1:]).sum(1) * taps.exp()
        dk, dv = inputs_gradient(v, torch.exp(wide - reference), _tokens(dx, k.shape[2]))
    return returned(dk, k), returned(dv, v), returned(dtaps, kernel)


def _products(k: Tensor, v: Tensor, reference: Tensor, lines: int) -> Tensor:
    """[exp(K) V | exp(K)] relative to the reference, as planes (B, H (V + K), lines, columns)."""
    weight = torch.exp(k - reference)
    return _planes(torch.cat([weight * v, weight], -1), lines)


def _planes(t: Tensor, lines: int) -> Tensor:
    return t.flatten(2).transpose(1, 2).unflatten(2, (lines, -1)).contiguous()


def _tokens(t: Tensor, heads: int) -> Tensor:
    return t.flatten(2).transpose(1, 2).unflatten(2, (heads, -1))


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """The square: cross-correlation of every channel with its head's kernel, zeros around."""
    each = x.shape[1] // kernel.shape[0]
    weight = kernel.repeat_interleave(each, 0)[:, None]
    return F.conv2d(x, weight, padding=kernel.shape[-1] // 2, groups=x.shape[1])


def _outside(x: Tensor, side: int) -> Tensor:
    """Sums over everything outside the square of ``side`` lines and columns."""
    beyond = side // 2 + 1

    def before(t: Tensor) -> Tensor:
        return F.pad(t.cumsum(-1), (beyond, 0))[..., : t.shape[-1]]

    def around(t: Tensor) -> Tensor:
        return before(t) + before(t.flip(-1)).flip(-1)

    rest = F.avg_pool2d(around(x), (side, 1), stride=1, padding=(side // 2, 0), divisor_override=1)
    return rest + around(x.sum(-1))[..., None]


def _taps(side: int, lines: int, length: int, device: torch.device) -> Tensor:
    """For each pair (S, S) the entry of the flattened kernel, or side^2 outside the square."""
    at = torch.arange(length, device=device)
    columns = length // lines
    down = at // columns - (at // columns)[:, None] + side // 2
    right = at % columns - (at % columns)[:, None] + side // 2
    inside = (down >= 0) & (down < side) & (right >= 0) & (right < side)
    return torch.where(inside, down * side + right, side * side)


def _pairs(kernel: Tensor, lines: int, length: int) -> Tensor:
    """The bias of every pair: (H, S, S), zero outside the square."""
    taps = F.pad(kernel.flatten(1), (0, 1))
    return taps[:, _taps(kernel.shape[-1], lines, length, kernel.device)]


def _to_taps(pairs: Tensor, kernel: Tensor, lines: int) -> Tensor:
    """The transpose of `_pairs`: sums over all pairs of an offset."""
    index = _taps(kernel.shape[-1], lines, pairs.shape[1], pairs.device).flatten()
    sums = pairs.new_zeros(pairs.shape[0], kernel[0].numel() + 1)
    return sums.index_add_(1, index, pairs.flatten(1))[:, :-1].view(kernel.shape)


def _operations(k: Any, v: Any, kernel: Any) -> int:
    return 2 * k[0] * k[1] * math.prod(kernel) * (k[3] + v[3])


_planar_average, _ = operator(
    "planar_average",
    _averages,
    _gradients,
    results=("o", "total"),
    inputs=("k", "v", "kernel"),
    shapes=lambda k, v: (fake(v), fake(widened(k))),
    flops=(_operations, lambda k, v, kernel: 2 * _operations(k, v, kernel)),
)
