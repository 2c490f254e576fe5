"""Causal softmax attention of queries after a cache, without an (L, S) mask, on a CPU.

Of S tokens the last L are queries. They see all P = S - L before them, and of their own the first
i + 1: two calls of torch's kernels, one of a rectangle and one of a triangle, which are merged by
the log-sums of their exponentials,

    o_i = sum_b e^(l_ib - l_i) o_ib,   l_i = log sum_b e^(l_ib)

The backward pass asks the same kernels with the merged outputs and log-sums. Memory is linear in S,
where the mask that torch's own call needs is (L, S).

Source: Milakov & Gimelshein 2018, arXiv 1805.02867 (the merge).
"""

from __future__ import annotations

import torch
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.core.leaving import leaves_torch
from everyformer.engines.operators import operator
from everyformer.engines.softmax import kernels


def able(q: Tensor, k: Tensor) -> bool:
    """True where `continued_attention` can take a causal call of these."""
    length = q.shape[2]
    return 1 < length < k.shape[2] and q.is_cpu and not leaves_torch()


def continued_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...), S > L."""
    if autocasts("cpu"):
        # as torch's own function: what is kept of the past may be float32 beside half queries
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = (t if t.dtype == torch.float64 else t.to(dtype) for t in (q, k, v))
    q, keys, values = kernels.for_kernels(q, k, v)
    # queries of their own: what is kept of a view is the keys and values beside it too
    o, _ = _continued_softmax(q.contiguous(), keys, values, scale)
    return o[..., : v.shape[-1]]


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """o (B, H, L, D) and log-sums (B, H, L)."""
    past = k.shape[2] - q.shape[2]
    before, earlier = kernels.forward(q, k[:, :, :past], v[:, :, :past], 0.0, False, scale=scale)
    own, later = kernels.forward(q, k[:, :, past:], v[:, :, past:], 0.0, True, scale=scale)
    o = before.to(later.dtype).lerp(own.to(later.dtype), (later - earlier).sigmoid()[..., None])
    return o.to(q.dtype).contiguous(), torch.logaddexp(earlier, later).contiguous()


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsum: Tensor, grad_o: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    past = k.shape[2] - q.shape[2]
    ranges = (slice(None, past), False), (slice(past, None), True)
    found = [
        kernels.backward(
            grad_o, q, k[:, :, keys], v[:, :, keys], o, logsum, triangle=triangle, scale=scale
        )
        for keys, triangle in ranges
    ]
    (dq, *before), (own, *later) = found
    dk, dv = (torch.cat(both, dim=2) for both in zip(before, later, strict=True))
    return (dq + own).contiguous(), dk, dv


_continued_softmax, _ = operator(
    "continued_softmax",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v"),
    shapes=kernels.shapes,
    flops=(lambda q, k: 4 * kernels.pairs(q, k), lambda q, k: 10 * kernels.pairs(q, k)),
)
