"""Gradients of keys and values, and of w: with p = exp(K + w - lse) and c = -g o,

dV = sum p g,    dK = V dV + sum p c,    dw = sum over rows and channels of p (g V + c).
"""

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
def read_above(
    g, o, lse, b, h, t, c, g_batch, g_step, g_head, heads, length, values, SHARED: tl.constexpr
):
    """g, c and the log-sums (R, C), inf where no token is seen."""
    here = (t < length)[:, None] & (c < values)[None, :]
    place = g + b * g_batch + h * g_head + t[:, None] * g_step + c[None, :]
    above = tl.load(place, here, 0.0).to(tl.float32)
    row = (b * length + t[:, None]) * heads + h
    average = tl.load(o + row * values + c[None, :], here, 0.0).to(tl.float32)
    place = row + 0 * c[None, :] if SHARED else row * values + c[None, :]
    logs = tl.load(lse + place, here, float("inf"))
    return above, -above * average, tl.where(logs == float("-inf"), float("inf"), logs)


@triton.jit
def scale_of(above, level, logs):
    """Factors of the products of a tile.

    It is at most exp(`RANGE`) where a query sees a key: elsewhere the level may be that of a key
    that it does not see, and infinity times its weights of 0 would be no number.
    """
    return tl.exp(tl.minimum(above[:, None] + level[None, :] - logs, RANGE))


@triton.jit
def add_queries(
    of_value, of_key, w, keys, weight, level, key_spread, x, y, logs, TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of p g and of p c for a block of keys, with a tile of queries added.

    ``weight`` is exp(K) beside the largest of every channel, ``level``, as `key_range` gives it.
    """
    above, bias_spread = bias_range(w)
    if bias_spread + key_spread <= RANGE:
        left = tl.trans(tl.exp(w - tl.maximum(above, LOWEST)[:, None]))
        scale = scale_of(above, level, logs)
        of_value += weight * product(left, x * scale, PRECISION)
        of_key += weight * product(left, y * scale, PRECISION)
    else:
        for i in range(TILE):
            log = tl.max(tl.where((tl.arange(0, TILE) == i)[:, None], logs, float("-inf")), 0)
            p = tl.exp(row_of(w, i, TILE)[:, None] + keys - log[None, :])
            of_value += p * row_of(x, i, TILE)[None, :]
            of_key += p * row_of(y, i, TILE)[None, :]
    return of_value, of_key


@triton.jit
def write_gradients(
    dk, dv, of_value, of_key, tokens, b, h, s, c, block, heads, source, values, value_blocks,
    SHARED: tl.constexpr,
):  # fmt: skip
    """dV and dK, or for shared keys its sum over a block of channels, of sums of p g and p c."""
    of_key += tokens * of_value
    row = (b * source + s[:, None]) * heads + h
    here = (s < source)[:, None] & (c < values)[None, :]
    tl.store(dv + row * values + c[None, :], of_value, here)
    if SHARED:
        into = dk + ((b * source + s) * heads + h) * value_blocks + block
        tl.store(into, tl.sum(of_key, 1), s < source)
    else:
        tl.store(dk + row * values + c[None, :], of_key, here)


@kernel
def differentiate_tokens(
    k, v, rows, columns, offset, o, lse, g, dk, dv,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    rows_head, rows_step, columns_head, columns_step,
    heads, length, source, values, rank, key_blocks, value_blocks,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, RANK: tl.constexpr,
    PRECISION: tl.constexpr, OF_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values; of shared keys, sums over blocks of channels."""
    h = (tl.program_id(0) // key_blocks).to(tl.int64)
    b, block = (tl.program_id(1) // value_blocks).to(tl.int64), tl.program_id(1) % value_blocks
    first = tl.program_id(0) % key_blocks * TILE
    s, c = first + tl.arange(0, TILE), block * TILE + tl.arange(0, TILE)
    keys, tokens = read_tokens(
        k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values, SHARED
    )
    level, key_spread = key_range(keys)
    weight = tl.exp(keys - tl.maximum(level, LOWEST)[None, :])
    of_value, of_key = tl.zeros([TILE, TILE], tl.float32), tl.zeros([TILE, TILE], tl.float32)
    start = 0
    if CAUSAL:
        seen_from = first.to(tl.int64)
        if offset is not None:
            seen_from -= tl.load(offset + h)
        start = (tl.maximum(seen_from, 0) // TILE * TILE).to(tl.int32)
    for begin in range(start, length, TILE):
        t = begin + tl.arange(0, TILE)
        w = read_bias(
            rows, columns, h, t, s, offset, rows_head, rows_step, columns_head, columns_step,
            length, source, rank, CAUSAL, RANK, OF_BIAS,
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


@triton.jit
def bias_gradient(
    k, v, o, lse, g, w, t, s, h, first, last,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    heads, length, source, values, SHARED: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dw of a tile, summed over the rows from ``first`` to ``last`` and their channels."""
    above, bias_spread = bias_range(w)
    left = tl.exp(w - tl.maximum(above, LOWEST)[:, None])
    dw = tl.zeros([TILE, TILE], tl.float32)
    for b in range(first, last):
        for start in range(0, values, TILE):
            c = start + tl.arange(0, TILE)
            keys, tokens = read_tokens(
                k, v, b, h, s, c, k_batch, k_step, k_head, v_batch, v_step, v_head, source, values,
                SHARED,
            )  # fmt: skip
            level, key_spread = key_range(keys)
            x, y, logs = read_above(
                g, o, lse, b, h, t, c, g_batch, g_step, g_head, heads, length, values, SHARED
            )
            if bias_spread + key_spread <= RANGE:
                weight = tl.exp(keys - tl.maximum(level, LOWEST)[None, :])
                scale = scale_of(above, level, logs)
                new = product(x * scale, tl.trans(weight * tokens), PRECISION)
                dw += left * (new + product(y * scale, tl.trans(weight), PRECISION))
            else:
                for j in range(TILE):
                    score = column_of(w, j, TILE)[:, None] + row_of(keys, j, TILE)[None, :]
                    p = tl.exp(score - logs)
                    new = tl.sum(p * (x * row_of(tokens, j, TILE)[None, :] + y), 1)
                    dw += tl.where(tl.arange(0, TILE)[None, :] == j, new[:, None], 0.0)
    return dw


@kernel
def differentiate_rows(
    k, v, rows, columns, offset, o, lse, g, drows,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    rows_head, rows_step, columns_head, columns_step,
    heads, length, source, values, rank, row_blocks, each,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, RANK: tl.constexpr,
    PRECISION: tl.constexpr, OF_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of rows (of w or its factor), for ``each`` rows of the batch alone."""
    h, part = (tl.program_id(0) // row_blocks).to(tl.int64), tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) % row_blocks * TILE + tl.arange(0, TILE)
    r, drow = tl.arange(0, RANK), tl.zeros([TILE, RANK], tl.float32)
    row = (part * heads + h) * length + t
    stop = source
    if CAUSAL:
        last = tl.minimum((tl.program_id(0) % row_blocks + 1) * TILE, length).to(tl.int64)
        if offset is not None:
            last += tl.load(offset + h)
        stop = tl.minimum(last, source).to(tl.int32)
    for start in range(0, stop, TILE):
        s = start + tl.arange(0, TILE)
        w = read_bias(
            rows, columns, h, t, s, offset, rows_head, rows_step, columns_head, columns_step,
            length, source, rank, CAUSAL, RANK, OF_BIAS,
        )  # fmt: skip
        dw = bias_gradient(
            k, v, o, lse, g, w, t, s, h, part * each, (part + 1) * each, k_batch, k_step, k_head,
            v_batch, v_step, v_head, g_batch, g_step, g_head, heads, length, source, values,
            SHARED, TILE, PRECISION,
        )  # fmt: skip
        if columns is None:
            here = (t < length)[:, None] & (s < source)[None, :]
            tl.store(drows + row[:, None] * source + s[None, :], dw, here)
        else:
            place = columns + h * columns_head + s[:, None] * columns_step + r[None, :]
            column = tl.load(place, (s < source)[:, None] & (r < rank)[None, :], 0.0)
            drow += product(dw, column, PRECISION)
    if columns is not None:
        here = (t < length)[:, None] & (r < rank)[None, :]
        tl.store(drows + row[:, None] * rank + r[None, :], drow, here)


@kernel
def differentiate_columns(
    k, v, rows, columns, offset, o, lse, g, dcolumns,
    k_batch, k_step, k_head, v_batch, v_step, v_head, g_batch, g_step, g_head,
    rows_head, rows_step, columns_head, columns_step,
    heads, length, source, values, rank, key_blocks, each,
    CAUSAL: tl.constexpr, SHARED: tl.constexpr, TILE: tl.constexpr, RANK: tl.constexpr,
    PRECISION: tl.constexpr, OF_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of columns, the other factor of w, likewise."""
    h, part = (tl.program_id(0) // key_blocks).to(tl.int64), tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) % key_blocks * TILE
    s, r = first + tl.arange(0, TILE), tl.arange(0, RANK)
    dcolumn = tl.zeros([TILE, RANK], tl.float32)
    begin = 0
    if CAUSAL:
        seen_from = first.to(tl.int64)
        if offset is not None:
            seen_from -= tl.load(offset + h)
        begin = (tl.maximum(seen_from, 0) // TILE * TILE).to(tl.int32)
    for start in range(begin, length, TILE):
        t = start + tl.arange(0, TILE)
        w = read_bias(
            rows, columns, h, t, s, offset, rows_head, rows_step, columns_head, columns_step,
            length, source, rank, CAUSAL, RANK, OF_BIAS,
        )  # fmt: skip
        dw = bias_gradient(
            k, v, o, lse, g, w, t, s, h, part * each, (part + 1) * each, k_batch, k_step, k_head,
            v_batch, v_step, v_head, g_batch, g_step, g_head, heads, length, source, values,
            SHARED, TILE, PRECISION,
        )  # fmt: skip
        place = rows + h * rows_head + t[:, None] * rows_step + r[None, :]
        row = tl.load(place, (t < length)[:, None] & (r < rank)[None, :], 0.0)
        dcolumn += product(tl.trans(dw), row, PRECISION)
    here = (s < source)[:, None] & (r < rank)[None, :]
    into = dcolumns + ((part * heads + h) * source + s[:, None]) * rank + r[None, :]
    tl.store(into, dcolumn, here)
