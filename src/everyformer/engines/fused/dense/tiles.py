"""Tiles of w, and when exp(K + w) is a product there.

In a tile exp(w_tj + K_jc) = exp(w_tj - a_t) exp(K_jc - b_c) exp(a_t + b_c), a and b the largest of
rows and channels. Both factors are matrices as long as no product of them underflows, that is, if
the ranges of w and of K in the tile together stay within `RANGE`; else keys are taken one by one.
"""

import torch
import triton
import triton.language as tl

from everyformer.engines.fused.kernel.states import product

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
RANGE = tl.constexpr(60.0)
"""exp(-60) is far above what float32 loses; exp(60) leaves room for values and their gradients"""


@triton.jit
def read_bias(
    rows, columns, h, t, s, offset, rows_head, rows_step, columns_head, columns_step, length,
    source, rank, CAUSAL: tl.constexpr, RANK: tl.constexpr, OF_BIAS: tl.constexpr,
):  # fmt: skip
    """w (R, S) of queries t and keys s, -inf where a key is not seen."""
    mask = (t < length)[:, None] & (s < source)[None, :]
    from_rows = rows + h * rows_head + t[:, None] * rows_step
    if columns is None:
        w = tl.load(from_rows + s[None, :], mask, 0.0).to(tl.float32)
    else:
        r = tl.arange(0, RANK)
        left = tl.load(from_rows + r[None, :], (t < length)[:, None] & (r < rank)[None, :], 0.0)
        place = columns + h * columns_head + s[None, :] * columns_step + r[:, None]
        right = tl.load(place, (s < source)[None, :] & (r < rank)[:, None], 0.0)
        w = product(left, right, OF_BIAS)
    if CAUSAL:
        last = t.to(tl.int64)
        if offset is not None:
            last += tl.load(offset + h)
        mask = mask & (s[None, :] <= last[:, None])
    return tl.where(mask, w, float("-inf"))


@triton.jit
def read_tokens(
    k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values,
    SHARED: tl.constexpr,
):  # fmt: skip
    """Keys and values (S, C) of tokens s and channels c, -inf and 0 where there are none."""
    here = (s < source)[:, None] & (c < values)[None, :]
    key = tl.zeros_like(c) if SHARED else c
    place = k + b * k_batch + h * k_head + s[:, None] * k_step + key[None, :]
    keys = tl.load(place, here, float("-inf")).to(tl.float32)
    place = v + b * v_batch + h * v_head + s[:, None] * v_step + c[None, :]
    return keys, tl.load(place, here, 0.0).to(tl.float32)


@triton.jit
def bias_range(w):
    """The largest of every row of w, and the largest difference between two seen of one row."""
    top = tl.max(w, 1)
    low = tl.min(tl.where(w == float("-inf"), float("inf"), w), 1)
    return top, tl.max(tl.where(top > low, top - low, 0.0), 0)


@triton.jit
def key_range(keys):
    """The same of every channel of keys (S, C)."""
    top = tl.max(keys, 0)
    low = tl.min(tl.where(keys == float("-inf"), float("inf"), keys), 0)
    return top, tl.max(tl.where(top > low, top - low, 0.0), 0)


@triton.jit
def row_of(tile, i, ROWS: tl.constexpr):
    """Row ``i`` of a tile."""
    return tl.sum(tl.where(tl.arange(0, ROWS)[:, None] == i, tile, 0.0), 0)


@triton.jit
def column_of(tile, j, COLUMNS: tl.constexpr):
    """Column ``j`` of a tile."""
    return tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == j, tile, 0.0), 1)
