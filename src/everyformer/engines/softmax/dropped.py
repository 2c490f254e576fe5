"""Softmax attention with dropout on its weights, on a CPU: a tile of them at a time.

    o_i = sum_j m_ij P_ij v_j,   P_ij = e^(s_ij) / sum_n e^(s_in),   s_ij = scale q_i . k_j + b_ij
    dV = (m P)^T dO,   dS = P (m dO V^T - delta),   delta_i = sum_j P_ij m_ij (dO V^T)_ij
    dQ = scale dS K,   dK = scale dS^T Q

m are factors of dropout, rows of its wheel (`everyformer.engines.dropout`). Neither the weights nor
m are kept, a tile is computed again in the backward pass: memory is linear in L and S, where
torch's own function keeps several tensors of (L, S) for every head and draws a number for each of
their entries. Sums are float32 at least.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.leaving import leaves_torch
from everyformer.engines.drawing import before, draw
from everyformer.engines.dropout import P, wheel
from everyformer.engines.operators import operator
from everyformer.engines.ranges import full_precision, returned, widened
from everyformer.engines.softmax.kernels import pairs

ROOM = P
"""weights of a tile, two megabytes; a row of the wheel is not longer"""


def able(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> bool:
    """True where `dropped_attention` can take a call of these."""
    if not q.is_cpu or leaves_torch() or _stride(k.shape[2]) > ROOM:
        return False
    if causal and q.shape[2] > k.shape[2]:
        return False
    return mask is None or not mask.requires_grad


def dropped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
) -> Tensor:
    """Outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

    Args:
        mask: bool (True = may be seen) or additive, broadcastable to (B, H, L, S).
        causal: query i sees the keys up to i + (S - L), L at most S.
        rate: share of the weights that is dropped, from 0 to 1; the others are scaled up.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=widened(q[:0]).dtype).masked_fill_(~mask, -math.inf)
        mask = mask[(None,) * (4 - mask.dim())].expand(*q.shape[:2], -1, k.shape[2])
    return _dropped_softmax(q, k, v, mask, draw(P), causal, scale, rate)


class _Tile(NamedTuple):
    """Some queries of one head, or all of several."""

    heads: slice
    """of all heads of all rows of the batch"""
    rows: slice
    keys: slice
    """those up to the last that a query sees"""
    factors: Tensor
    """m (heads, rows, keys)"""


def _stride(keys: int) -> int:
    """Entries of the wheel from a query's first to the next one's: an odd number, so that no two of
    P queries have the same."""
    return keys | 1


def _tiles(q: Tensor, k: Tensor, place: Tensor, causal: bool, rate: float) -> Iterator[_Tile]:
    """The tiles of ``q`` (X, L, D) and ``k`` (X, S, D), for a ``place`` that `draw` gave."""
    (heads, rows), keys = q.shape[:2], k.shape[1]
    stride, turned, numbers = _stride(keys), wheel(rate, q.dtype), place.tolist()
    first = numbers[0] + before(heads * rows, numbers) * stride
    several = max(1, ROOM // max(rows * stride, 1))
    step = rows if rows * stride <= ROOM else ROOM // stride
    for head in range(0, heads, several):
        chosen = slice(head, min(head + several, heads))
        for row in range(0, rows, step):
            some = slice(row, min(row + step, rows))
            seen = some.stop + keys - rows if causal else keys
            size = chosen.stop - chosen.start, some.stop - row, seen
            begin = (first + (head * rows + row) * stride) % P
            factors = turned.as_strided(size, (rows * stride, stride, 1), begin)
            yield _Tile(chosen, some, slice(0, seen), factors)


def _weights(
    q: Tensor, k: Tensor, tile: _Tile, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """P of a tile; zeros where nothing is seen."""
    q, k = q[tile.heads, tile.rows], k[tile.heads, tile.keys]
    scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=scale)
    if causal:
        # of the last keys, as many as there are queries
        square = scores[:, :, scores.shape[2] - scores.shape[1] :]
        hidden = torch.ones(square.shape[1:], dtype=torch.bool).triu_(1)
        square.masked_fill_(hidden, -math.inf)
    if mask is None:
        return scores.softmax(-1)
    head = torch.arange(tile.heads.start, tile.heads.stop)
    added = mask[head // mask.shape[1], head % mask.shape[1]][..., tile.keys]
    scores += added if added.shape[1] == 1 else added[:, tile.rows]
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill_(empty, 0.0).softmax(-1).masked_fill_(empty, 0.0)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, place: Tensor, causal: bool, scale: float,
    rate: float,
) -> Tensor:  # fmt: skip
    """o (B, H, L, Dv)."""
    o = widened(v[..., :0]).new_empty(*q.shape[:3], v.shape[-1])
    with full_precision(q):
        a, b, c = (widened(t).flatten(0, 1) for t in (q, k, v))
        into = o.view(-1, *o.shape[2:])
        for tile in _tiles(a, b, place, causal, rate):
            p = _weights(a, b, tile, mask, causal, scale).mul_(tile.factors)
            torch.bmm(p, c[tile.heads, tile.keys], out=into[tile.heads, tile.rows])
    return returned(o, v)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, place: Tensor, grad_o: Tensor,
    causal: bool, scale: float, rate: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(q):
        a, b, c, above = (widened(t).flatten(0, 1) for t in (q, k, v, grad_o))
        dq, dk, dv = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (a, b, c))
        for tile in _tiles(a, b, place, causal, rate):
            heads, rows, keys, m = tile
            p, g = _weights(a, b, tile, mask, causal, scale), above[heads, rows]
            dp = torch.bmm(g, c[heads, keys].mT).mul_(m)
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            dv[heads, keys].baddbmm_(p.mul_(m).mT, g)
            dq[heads, rows].baddbmm_(ds, b[heads, keys], alpha=scale)
            dk[heads, keys].baddbmm_(ds.mT, a[heads, rows], alpha=scale)
    found = zip((dq, dk, dv), (q, k, v), strict=True)
    dq, dk, dv = (returned(d.view(t.shape), t) for d, t in found)
    return dq, dk, dv


_dropped_softmax, _ = operator(
    "dropped_softmax",
    _attend,
    _gradients,
    results=("o",),
    inputs=("q", "k", "v"),
    shapes=lambda q, v: v.new_empty(*q.shape[:3], v.shape[-1]),
    flops=(lambda q, k: 4 * pairs(q, k), lambda q, k: 10 * pairs(q, k)),
)
