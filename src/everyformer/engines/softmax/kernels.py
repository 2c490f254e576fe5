"""Softmax attention by torch's fused kernels on a CPU, and gradients where these are slow.

    P_ij = e^(scale q_i . k_j - l_i),   dV = P^T dO,   dS = P * (dO V^T - delta)
    dQ = scale dS K,   dK = scale dS^T Q,   delta_i = dO_i . O_i

with the log-sums l of the forward pass. In bfloat16 torch's backward pass costs the same for every
head of every unit, however small: for 256 units of 64 queries and keys it takes 18 ms where float32
takes 3.6 (two cores with AMX, torch 2.13). So units of few queries have gradients of their own: by
products of matrices in bfloat16 where the processor has tiles for them, else in float32.

A product in bfloat16 is summed up in float32 and rounded at its end, so l and delta are part of it:
three more channels hold -l as a sum of three numbers of bfloat16, beside ones. What is rounded then
is a score less its log-sum, which is near 0 wherever a weight is large.

Source: Dao et al. 2022, arXiv 2205.14135, section 3.1 (the backward pass from log-sums).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.engines.operators import operator
from everyformer.engines.ranges import fake, full_precision

forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""outputs (U, H, R, D) and log-sums (U, H, R) of q, k, v (U, H, R or S, D)"""
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

FEW = 512
"""queries of a unit up to which torch's backward pass in bfloat16 is slower: 37 ms for 26 at 512
with 1,024 keys, 28 for 28 at 1,024"""
ROOM = 1 << 20
"""scores that are worked on at a time, two megabytes"""
PARTS = 3
"""numbers of bfloat16 whose sum holds a number of float32"""
ALIGNED = 8
"""channels of a product's rows, a multiple of this: 67 take 1.3 times as long as 72"""


def able(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """True where `few_attention` can take a call of these, and its gradients are worth it."""
    if torch.compiler.is_compiling() or not q.is_cpu or not 1 < q.shape[2] <= FEW:
        return False
    trained = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if not trained or (mask is not None and mask.requires_grad):
        return False
    if autocasts("cpu"):
        return torch.get_autocast_dtype("cpu") is torch.bfloat16
    return all(t.dtype is torch.bfloat16 for t in (q, k, v))


def few_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, triangle: bool, scale: float
) -> Tensor:
    """Outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...) in bfloat16.

    Args:
        mask: bool (True = may be seen) or additive, broadcastable to (B, H, L, S).
        triangle: query i sees the keys up to i.
    """
    size = v.shape[-1]
    q, k, v = for_kernels(*(t.bfloat16() for t in (q, k, v)))
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -math.inf)
        shape = *(1,) * (4 - mask.dim()), *mask.shape[:-1], k.shape[2]
        mask = mask.to(q.dtype).expand(shape)
    o, _ = _few_softmax(q, k, v, mask, triangle, scale)
    return o[..., :size]


def for_kernels(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, ...) with heads of one size, as CPU kernels take them."""
    groups, most = q.shape[1] // k.shape[1], max(q.shape[-1], v.shape[-1])
    k, v = (t if groups == 1 else t.repeat_interleave(groups, dim=1) for t in (k, v))
    # where nothing is missing, padding would be a copy
    sizes = ((t, most - t.shape[-1]) for t in (q, k, v))
    q, k, v = (F.pad(t, (0, missing)) if missing else t for t, missing in sizes)
    return q, k, v


def backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsum: Tensor, *,
    triangle: bool, scale: float, mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values (U, H, R or S, D).

    Args:
        o, logsum: may be those of more keys than these.
        triangle: query i sees the keys up to i.
        mask: is added to scores, (U or 1, H or 1, R or 1, S) in their dtype.
    """
    if q.dtype is torch.bfloat16 and q.shape[2] <= FEW and scale:
        if _has_tiles():
            return _by_products(grad_o, q, k, v, o, logsum, triangle, scale, mask)
        wide = (t.float() for t in (grad_o, q, k, v, o))
        added = None if mask is None else mask.float()
        dq, dk, dv = _fused(*wide, logsum, 0.0, triangle, attn_mask=added, scale=scale)
        return dq.bfloat16(), dk.bfloat16(), dv.bfloat16()
    found: tuple[Tensor, Tensor, Tensor] = _fused(
        grad_o, q, k, v, o, logsum, 0.0, triangle, attn_mask=mask, scale=scale
    )
    return found


def _has_tiles() -> bool:
    """Whether products in bfloat16 are the processor's own; older torch does not tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))


def _by_products(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsum: Tensor, triangle: bool,
    scale: float, mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`backward` in bfloat16."""
    (units, heads, rows, size), keys = q.shape, k.shape[2]
    # gradients of what is computed again are made under autocast, which would round this
    with full_precision(q):
        delta = torch.linalg.vecdot(grad_o.float(), o.float())
    queries, above = _beside(q, -logsum / scale), _beside(grad_o, -delta)
    read, values = _beside(k, None), _beside(v, None)
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype) for t in (q, k, v))
    step = max(1, ROOM // (heads * rows * keys))
    for first in range(0, units, step):
        part = slice(first, first + step)
        a, b, g, c = (t[part].flatten(0, 1) for t in (queries, read, above, values))
        into_q, into_k, into_v = (t[part].flatten(0, 1) for t in (dq, dk, dv))
        p = a.new_empty(len(a), rows, keys)
        torch.baddbmm(p, a, b.mT, beta=0, alpha=scale, out=p)
        if mask is not None:
            p.unflatten(0, (-1, heads)).add_(mask if len(mask) == 1 else mask[part])
        p.exp_()
        if triangle:
            p.tril_()
        torch.bmm(p.mT, g[..., :size], out=into_v)
        ds = torch.bmm(g, c.mT).mul_(p)
        torch.baddbmm(into_q, ds, b[..., :size], beta=0, alpha=scale, out=into_q)
        torch.baddbmm(into_k, ds.mT, a[..., :size], beta=0, alpha=scale, out=into_k)
    return dq, dk, dv


def _beside(t: Tensor, number: Tensor | None) -> Tensor:
    """``t`` (U, H, R, D) and three channels more: the parts of ``number`` (U, H, R), zeros behind
    them, or ones that a product multiplies them by."""
    size = t.shape[-1]
    held = t.new_empty(*t.shape[:-1], -(-(size + PARTS) // ALIGNED) * ALIGNED)
    held[..., :size] = t
    more = held[..., size:].fill_(1.0 if number is None else 0.0)
    if number is not None:
        for part in range(PARTS):
            more[..., part] = number
            number = number - more[..., part]
    return held


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, triangle: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """o (U, H, R, D) and log-sums (U, H, R), 0 where nothing is seen."""
    o, logsum = forward(q, k, v, 0.0, triangle, attn_mask=mask, scale=scale)
    return o.contiguous(), logsum.contiguous()


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, triangle: bool, scale: float, o: Tensor,
    logsum: Tensor, grad_o: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = backward(grad_o, q, k, v, o, logsum, triangle=triangle, scale=scale, mask=mask)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def shapes(q: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs like queries ``q`` and log-sums of its first three dimensions, without values."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return fake(q), q.new_empty(q.shape[:3], dtype=wide)


def pairs(q: Any, k: Any) -> int:
    """Pairs of queries and keys, times channels of all heads."""
    units, heads, rows, size = q
    return int(units * heads * rows * k[2] * size)


_few_softmax, _ = operator(
    "few_softmax",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v"),
    shapes=shapes,
    flops=(lambda q, k: 4 * pairs(q, k), lambda q, k: 10 * pairs(q, k)),
)
