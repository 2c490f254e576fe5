"""Levels of the keys of every chunk, and the factors that follow from them.

Keys without levels have the level 0 and a state of level 0, which makes all factors 1; tokens that
are not read have the level -inf.
"""

import torch
import triton
import triton.language as tl

from everyformer.engines.fused.compiled import kernel

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


@kernel
def read_levels(
    level, gate, padding_mask, weights, highest, own, largest, faded, length, heads, chunks,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Of every token w, the running maximum of w and e^{w - max w}; of every chunk max w and the
    sum of its log gates."""
    at = tl.program_id(0).to(tl.int64)
    x, order = at // chunks, tl.arange(0, CHUNK)
    t = at % chunks * CHUNK + order
    real = t < length
    passed, w = tl.zeros([CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    if gate is not None:
        passed += tl.cumsum(tl.load(gate + x * length + t, real, 0.0).to(tl.float32), 0)
    if level is not None:
        w += tl.load(level + x * length + t, real, 0.0).to(tl.float32)
    if padding_mask is not None:
        real = real & (tl.load(padding_mask + x // heads * length + t, real, 0) != 0)
    w = tl.where(real, w - passed, float("-inf"))
    top = tl.max(w, 0)
    into = at * CHUNK + order
    tl.store(weights + into, w)
    reached = tl.where(order[None, :] <= order[:, None], w[None, :], float("-inf"))
    tl.store(highest + into, tl.max(reached, 1))
    tl.store(own + into, tl.exp(w - tl.maximum(top, LOWEST)))
    tl.store(largest + at, top)
    tl.store(faded + at, tl.sum(tl.where(order == CHUNK - 1, passed, 0.0), 0))


@triton.jit
def fade_before(highest, top):
    """The level of every query, and the factor of the state before, whose level is ``top``."""
    reached = tl.maximum(tl.maximum(highest, top), LOWEST)
    return reached, tl.exp(top - reached)


@triton.jit
def fade_pairs(w, reached, CHUNK: tl.constexpr):
    """Factors (C, C) of every key for the queries from its own on, 0 for those before."""
    order = tl.arange(0, CHUNK)
    mask = order[None, :] <= order[:, None]
    return tl.exp(tl.where(mask, w[None, :] - reached[:, None], float("-inf")))
