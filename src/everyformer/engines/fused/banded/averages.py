"""Averages of blocks of keys, and of every block of queries over the tiles of its window.

Key block m begins at token ``first`` + (m - 1) TILE; query block i has the window i + 1 .. i +
``window``. With first = lead - (keys of a band before its query), the offset between query t and
token s has entry s - t - first of the bias; when causal, entries end with the query's own.
"""

import triton
import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.dense.averages import add_tile, write_averages
from everyformer.engines.fused.dense.tiles import LOWEST, read_tokens


@triton.jit
def keys_of(m, first, source, TILE: tl.constexpr):
    """Tokens of key block ``m``, ``source`` (which is no token) for those before the row."""
    s = first + (m - 1) * TILE + tl.arange(0, TILE)
    return tl.where(s < 0, source, s)


@triton.jit
def read_band(
    bias, h, t, s, bias_head, bias_step, length, source, offsets, first, CAUSAL: tl.constexpr
):
    """w (T, S) of queries t and keys s: the bias in the band, 0 beside it, -inf where not seen."""
    entry = s[None, :] - t[:, None] - first
    mask = (t < length)[:, None] & (s < source)[None, :]
    if CAUSAL:
        mask = mask & (entry < offsets)
    inside = mask & (entry >= 0) & (entry < offsets)
    w = tl.load(bias + h * bias_head + t[:, None] * bias_step + entry, inside, 0.0).to(tl.float32)
    return tl.where(mask, w, float("-inf"))


@kernel
def sum_blocks(
    k, v, lse, o,
    k_batch, k_step, k_head, v_batch, v_step, v_head,
    heads, source, values, first, blocks, value_blocks,
    SHARED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Log-sums and averages of every block of keys, both by channel."""
    h, m = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    b = (tl.program_id(1) // value_blocks).to(tl.int64)
    c = tl.program_id(1) % value_blocks * TILE + tl.arange(0, TILE)
    keys, tokens = read_tokens(
        k, v, b, h, keys_of(m, first, source, TILE), c, k_batch, k_step, k_head, v_batch, v_step,
        v_head, source, values, SHARED,
    )  # fmt: skip
    reached = tl.maximum(tl.max(keys, 0), LOWEST)
    weight = tl.exp(keys - reached[None, :])
    total = tl.sum(weight, 0)
    place = ((b * blocks + m) * heads + h) * values + c
    tl.store(lse + place, reached + tl.log(total), c < values)
    # the largest key adds 1 to the total: only a block without tokens is below
    tl.store(o + place, tl.sum(weight * tokens, 0) / tl.maximum(total, 0.5), c < values)


@kernel
def average(
    k, v, bias, far_lse, far_o, o, lse,
    k_batch, k_step, k_head, v_batch, v_step, v_head, bias_head, bias_step,
    heads, length, source, values, offsets, first, queries, window, value_blocks,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and the log-sums of its weights, from the average of what lies outside the window on."""
    h, i = (tl.program_id(0) // queries).to(tl.int64), tl.program_id(0) % queries
    b = (tl.program_id(1) // value_blocks).to(tl.int64)
    t = i * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) % value_blocks * TILE + tl.arange(0, TILE)
    place = ((b * queries + i) * heads + h) * values + c
    far = tl.load(far_lse + place, c < values, float("-inf"))
    top = far[None, :] + tl.zeros([TILE, TILE], tl.float32)
    total = tl.where(top > float("-inf"), 1.0, 0.0)
    summed = total * tl.load(far_o + place, c < values, 0.0)[None, :]
    for n in range(window):
        s = keys_of(i + 1 + n, first, source, TILE)
        w = read_band(
            bias, h, t, s, bias_head, bias_step, length, source, offsets, first, CAUSAL
        )  # fmt: skip
        keys, tokens = read_tokens(
            k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values,
            SHARED,
        )  # fmt: skip
        top, total, summed = add_tile(top, total, summed, w, keys, tokens, TILE, PRECISION)
    write_averages(
        o, lse, top, total, summed, b, h, t, c, heads, length, values, SHARED
    )  # fmt: skip
