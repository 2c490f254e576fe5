"""Gradients of what lies outside the windows, of keys and values, and of the bias.

With p = exp(K + w - lse) and c = -g o, for pairs of a window and for whole blocks of keys alike:

dV = sum p g,    dK = V dV + sum p c,    dw = sum over rows and channels of p (g V + c).
"""

import triton.language as tl

from everyformer.engines.fused.banded.averages import keys_of, read_band
from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.dense.gradients import (
    add_queries,
    bias_gradient,
    read_above,
    write_gradients,
)
from everyformer.engines.fused.dense.tiles import LOWEST, key_range, read_tokens


@kernel
def differentiate_far(
    far_lse, o, lse, g, dfar, cfar,
    g_batch, g_step, g_head,
    heads, length, values, queries, value_blocks,
    SHARED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """For every block of queries, sums of p g and p c, p the share of all outside its window."""
    h, i = (tl.program_id(0) // queries).to(tl.int64), tl.program_id(0) % queries
    b = (tl.program_id(1) // value_blocks).to(tl.int64)
    t = i * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) % value_blocks * TILE + tl.arange(0, TILE)
    x, y, logs = read_above(
        g, o, lse, b, h, t, c, g_batch, g_step, g_head, heads, length, values, SHARED
    )
    place = ((b * queries + i) * heads + h) * values + c
    p = tl.exp(tl.load(far_lse + place, c < values, float("-inf"))[None, :] - logs)
    tl.store(dfar + place, tl.sum(p * x, 0), c < values)
    tl.store(cfar + place, tl.sum(p * y, 0), c < values)


@kernel
def differentiate_tokens(
    k, v, bias, block_lse, dblock, cblock, o, lse, g, dk, dv,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    bias_head, bias_step,
    heads, length, source, values, offsets, first, queries, window, blocks, value_blocks,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values; of shared keys, sums over blocks of channels."""
    h, m = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    b, block = (tl.program_id(1) // value_blocks).to(tl.int64), tl.program_id(1) % value_blocks
    s, c = keys_of(m, first, source, TILE), block * TILE + tl.arange(0, TILE)
    keys, tokens = read_tokens(
        k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values, SHARED
    )
    place = ((b * blocks + m) * heads + h) * values + c
    # in queries whose windows are elsewhere the block is one token
    total = tl.load(block_lse + place, c < values, float("-inf"))
    weight = tl.exp(keys - tl.maximum(total, LOWEST)[None, :])
    of_value = weight * tl.load(dblock + place, c < values, 0.0)[None, :]
    of_key = weight * tl.load(cblock + place, c < values, 0.0)[None, :]
    level, key_spread = key_range(keys)
    weight = tl.exp(keys - tl.maximum(level, LOWEST)[None, :])
    for i in range(tl.maximum(m - window, 0), tl.minimum(m, queries)):
        t = i * TILE + tl.arange(0, TILE)
        w = read_band(
            bias, h, t, s, bias_head, bias_step, length, source, offsets, first, CAUSAL
        )  # fmt: skip
        x, y, logs = read_above(
            g, o, lse, b, h, t, c, g_batch, g_step, g_head, heads, length, values, SHARED
        )
        of_value, of_key = add_queries(
            of_value, of_key, w, keys, weight, level, key_spread, x, y, logs, TILE, PRECISION
        )
    write_gradients(
        dk, dv, of_value, of_key, tokens, b, h, s, c, block, heads, source, values, value_blocks,
        SHARED,
    )  # fmt: skip


@kernel
def differentiate_bias(
    k, v, bias, o, lse, g, dbias,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    bias_head, bias_step,
    batch, heads, length, source, values, offsets, first, queries, window, each,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the biases of a tile for each of its queries, from ``each`` rows of the batch."""
    tile, part = tl.program_id(0) // window, tl.program_id(1).to(tl.int64)
    h, i = (tile // queries).to(tl.int64), tile % queries
    t = i * TILE + tl.arange(0, TILE)
    s = keys_of(i + 1 + tl.program_id(0) % window, first, source, TILE)
    w = read_band(
        bias, h, t, s, bias_head, bias_step, length, source, offsets, first, CAUSAL
    )  # fmt: skip
    dw = bias_gradient(
        k, v, o, lse, g, w, t, s, h, part * each, tl.minimum((part + 1) * each, batch), k_batch,
        k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head, heads, length, source,
        values, SHARED, TILE, PRECISION,
    )  # fmt: skip
    entry = s[None, :] - t[:, None] - first
    inside = (t < length)[:, None] & (s < source)[None, :] & (entry >= 0) & (entry < offsets)
    into = dbias + ((part * heads + h) * length + t[:, None]) * offsets + entry
    tl.store(into, dw, inside)
