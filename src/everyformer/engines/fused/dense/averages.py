"""Averages of every block of queries and channels, the keys' tiles in turn."""

import triton
import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.dense.tiles import (
    LOWEST,
    RANGE,
    bias_range,
    column_of,
    key_range,
    read_bias,
    read_tokens,
    row_of,
)
from everyformer.engines.fused.kernel.states import product


@triton.jit
def add_tile(top, total, summed, w, keys, tokens, TILE: tl.constexpr, PRECISION: tl.constexpr):
    """The largest scores, sums of weights beside these and of weighted values, with a tile's."""
    above, bias_spread = bias_range(w)
    level, key_spread = key_range(keys)
    if bias_spread + key_spread <= RANGE:
        left = tl.exp(w - tl.maximum(above, LOWEST)[:, None])
        right = tl.exp(keys - tl.maximum(level, LOWEST)[None, :])
        weights = product(left, right, PRECISION)
        # a query that sees none but hidden keys here is not to follow a key that it does not see
        score = tl.where(weights > 0, above[:, None] + level[None, :], float("-inf"))
        higher = tl.maximum(top, score)
        reached = tl.maximum(higher, LOWEST)
        fade, new = tl.exp(top - reached), tl.exp(score - reached)
        total = total * fade + new * weights
        summed = summed * fade + new * product(left, right * tokens, PRECISION)
        top = higher
    else:
        for j in range(TILE):
            score = column_of(w, j, TILE)[:, None] + row_of(keys, j, TILE)[None, :]
            higher = tl.maximum(top, score)
            reached = tl.maximum(higher, LOWEST)
            fade, new = tl.exp(top - reached), tl.exp(score - reached)
            total = total * fade + new
            summed = summed * fade + new * row_of(tokens, j, TILE)[None, :]
            top = higher
    return top, total, summed


@triton.jit
def write_averages(
    o, lse, top, total, summed, b, h, t, c, heads, length, values, SHARED: tl.constexpr
):
    """o and the log-sums, from what `add_tile` gave for the last tile."""
    row = (b * length + t[:, None]) * heads + h
    here = (t < length)[:, None] & (c < values)[None, :]
    found = tl.where(total > 0, summed / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(o + row * values + c[None, :], found, here)
    logs = tl.maximum(top, LOWEST) + tl.log(total)
    if SHARED:
        tl.store(lse + row + 0 * c[None, :], logs, here & (c == 0)[None, :])
    else:
        tl.store(lse + row * values + c[None, :], logs, here)


@kernel
def average(
    k, v, rows, columns, offset, o, lse,
    k_batch, k_step, k_head, v_batch, v_step, v_head,
    rows_head, rows_step, columns_head, columns_step,
    heads, length, source, values, rank, row_blocks, value_blocks,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, RANK: tl.constexpr,
    PRECISION: tl.constexpr, OF_BIAS: tl.constexpr,
):  # fmt: skip
    """o and the log-sums of the weights."""
    h = (tl.program_id(0) // row_blocks).to(tl.int64)
    b = (tl.program_id(1) // value_blocks).to(tl.int64)
    t = tl.program_id(0) % row_blocks * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) % value_blocks * TILE + tl.arange(0, TILE)
    stop = source
    if CAUSAL:
        last = tl.minimum((tl.program_id(0) % row_blocks + 1) * TILE, length).to(tl.int64)
        if offset is not None:
            last += tl.load(offset + h)
        stop = tl.minimum(last, source).to(tl.int32)
    top = tl.full([TILE, TILE], float("-inf"), tl.float32)
    total, summed = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, stop, TILE):
        s = start + tl.arange(0, TILE)
        w = read_bias(
            rows, columns, h, t, s, offset, rows_head, rows_step, columns_head, columns_step,
            length, source, rank, CAUSAL, RANK, OF_BIAS,
        )  # fmt: skip
        keys, tokens = read_tokens(
            k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values,
            SHARED,
        )  # fmt: skip
        top, total, summed = add_tile(top, total, summed, w, keys, tokens, TILE, PRECISION)
    write_averages(
        o, lse, top, total, summed, b, h, t, c, heads, length, values, SHARED
    )  # fmt: skip
