"""Averages of the queries of every chunk, over their chunk and the state before it."""

import torch
import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.kernel.levels import fade_before, fade_pairs
from everyformer.engines.fused.kernel.states import product
from everyformer.engines.kernel import denominators

EMPTY = tl.constexpr(denominators.EMPTY[torch.float32])
"""a sum of weights below this has lost its digits"""


@kernel
def answer(
    q, k, v, weights, highest, tops, states, y, totals,
    q_batch, q_head, q_step, k_batch, k_head, k_step, v_batch, v_head, v_step,
    length, heads, features, values, start, chunks, padded, eps,
    KIND: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Averages y and the guarded denominators of a chunk."""
    at = tl.program_id(0).to(tl.int64)
    x, n = at // chunks, at % chunks
    t = (start + n) * CHUNK + tl.arange(0, CHUNK)
    inside = t < length
    w = tl.load(weights + x * padded + t)
    shown = w > float("-inf")
    top = tl.load(tops + at)
    reached, before = fade_before(tl.load(highest + x * padded + t), top)
    from_q = q + x // heads * q_batch + x % heads * q_head
    from_k = k + x // heads * k_batch + x % heads * k_head
    from_v = v + x // heads * v_batch + x % heads * v_head
    state = states + at * features * (values + 1)
    pairs, far = tl.zeros([CHUNK, CHUNK], tl.float32), tl.zeros([CHUNK], tl.float32)
    for i in range(0, features, FEATURES):
        m = i + tl.arange(0, FEATURES)
        here = inside[:, None] & (m < features)[None, :]
        queries = tl.load(from_q + t[:, None] * q_step + m[None, :], here, 0.0)
        here = (m < features)[:, None] & shown[None, :]
        keys = tl.load(from_k + t[None, :] * k_step + m[:, None], here, 0.0)
        pairs += product(queries, keys, PRECISION)
        norms = tl.load(state + m * (values + 1) + values, m < features, 0.0)
        far += tl.sum(queries.to(tl.float32) * norms[None, :], 1)
    pairs *= fade_pairs(w, reached, CHUNK)
    total = tl.sum(pairs, 1) + before * far
    if KIND == "positive":
        total += eps
        total = tl.where(total < EMPTY, float("inf"), total)
    else:
        size = tl.maximum(tl.abs(total), eps)
        total = tl.where(total < 0, -size, size)
    row = (x // heads * length + t) * heads + x % heads
    tl.store(totals + row, total, inside)
    for j in range(0, values, VALUES):
        d = j + tl.arange(0, VALUES)
        summed = tl.zeros([CHUNK, VALUES], tl.float32)
        for i in range(0, features, FEATURES):
            m = i + tl.arange(0, FEATURES)
            here = inside[:, None] & (m < features)[None, :]
            queries = tl.load(from_q + t[:, None] * q_step + m[None, :], here, 0.0)
            here = (m < features)[:, None] & (d < values)[None, :]
            sums = tl.load(state + m[:, None] * (values + 1) + d[None, :], here, 0.0)
            summed += product(queries, sums, PRECISION)
        here = shown[:, None] & (d < values)[None, :]
        tokens = tl.load(from_v + t[:, None] * v_step + d[None, :], here, 0.0)
        summed = summed * before[:, None] + product(pairs, tokens, PRECISION)
        here = inside[:, None] & (d < values)[None, :]
        tl.store(y + row[:, None] * values + d[None, :], summed / total[:, None], here)
