"""Gradients, the weights made again of every tile: with P = exp(s - lse) and g that of o,

dV_j = sum_i P_ij g_i,    ds_ij = P_ij (g_i (V_j + values_c) - g_i o_i),    c = L - 1 - i + j,

and of column c of a table, the sum over the pairs that meet it.
"""

import triton
import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.distances.tiles import (
    band_of,
    gathered,
    laid,
    read_queries,
    read_rows,
    score,
    write_rows,
)
from everyformer.engines.fused.kernel.states import product


@triton.jit
def differentiate(
    queries, asking, above, keys, tokens, vectors, numbers, values, lse, along, x, h, i, j, band,
    length, source, span, size, wide,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Weights of a tile, and gradients of its scores, of products, and of what numbers do."""
    scores, products, factors = score(
        queries, asking, keys, vectors, numbers, h, i, j, band, length, source, span, size, CAUSAL,
        FACTORS, TILE, SIZE, PRECISION,
    )  # fmt: skip
    there = (i >= 0) & (i < length)
    logs = tl.load(lse + x * length + i, there, 0.0)
    level = tl.load(along + x * length + i, there, 0.0)
    # of a query that sees nothing the log-sum is -inf, and every score
    weights = tl.exp(scores - tl.where(logs == float("-inf"), 0.0, logs)[:, None])
    ds = product(above, tl.trans(tokens), PRECISION)
    if values is not None:
        rows = band_of(values, h, band, span, wide, TILE, WIDE)
        ds += laid(product(above, tl.trans(rows), PRECISION), TILE)
    ds = weights * (ds - level[:, None])
    of_products, of_numbers = ds, ds
    if FACTORS:
        of_products = tl.where(products > 0, ds * factors, 0.0)
        of_numbers = ds * tl.maximum(products, 0.0)
    return weights, ds, of_products, of_numbers


@kernel
def differentiate_queries(
    q, p, k, v, vectors, numbers, values, lse, along, g, dq, dp, heads, length, source, span,
    size, wide, row_blocks,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries: of what keys and what vectors are compared with."""
    x = (tl.program_id(0) // row_blocks).to(tl.int64)
    h, first = x % heads, tl.program_id(0) % row_blocks * TILE
    i = first + tl.arange(0, TILE)
    queries, asking = read_queries(q, p, x, i, length, size, SIZE)
    above = read_rows(g, x, i, length, wide, WIDE)
    of_queries, of_asking = (
        tl.zeros([TILE, SIZE], tl.float32),
        tl.zeros([TILE, SIZE], tl.float32),
    )
    stop = source
    if CAUSAL:
        stop = tl.minimum(source, tl.minimum(first + TILE, length) + source - length)
    for start in range(0, stop, TILE):
        j, band = start + tl.arange(0, TILE), length - TILE - first + start
        keys = read_rows(k, x, j, source, size, SIZE)
        tokens = read_rows(v, x, j, source, wide, WIDE)
        _, ds, of_products, _ = differentiate(
            queries, asking, above, keys, tokens, vectors, numbers, values, lse, along, x, h, i, j,
            band, length, source, span, size, wide, CAUSAL, FACTORS, TILE, SIZE, WIDE, PRECISION,
        )  # fmt: skip
        of_queries += product(of_products.to(keys.dtype), keys, PRECISION)
        if vectors is not None:
            rows = band_of(vectors, h, band, span, size, TILE, SIZE)
            by_column = gathered(ds, 1 - TILE, 2 * TILE, TILE)
            of_asking += product(by_column.to(rows.dtype), rows, PRECISION)
    if p is None:
        of_queries += of_asking
    else:
        write_rows(dp, of_asking, x, i, length, size, SIZE)
    write_rows(dq, of_queries, x, i, length, size, SIZE)


@kernel
def differentiate_tokens(
    q, p, k, v, vectors, numbers, values, lse, along, g, dk, dv, heads, length, source, span,
    size, wide, key_blocks,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    x = (tl.program_id(0) // key_blocks).to(tl.int64)
    h, first = x % heads, tl.program_id(0) % key_blocks * TILE
    j = first + tl.arange(0, TILE)
    keys, tokens = (
        read_rows(k, x, j, source, size, SIZE),
        read_rows(v, x, j, source, wide, WIDE),
    )
    of_keys, of_tokens = tl.zeros([TILE, SIZE], tl.float32), tl.zeros([TILE, WIDE], tl.float32)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(first + length - source, 0) // TILE * TILE
    for start in range(begin, length, TILE):
        i, band = start + tl.arange(0, TILE), length - TILE - start + first
        queries, asking = read_queries(q, p, x, i, length, size, SIZE)
        above = read_rows(g, x, i, length, wide, WIDE)
        weights, _, of_products, _ = differentiate(
            queries, asking, above, keys, tokens, vectors, numbers, values, lse, along, x, h, i, j,
            band, length, source, span, size, wide, CAUSAL, FACTORS, TILE, SIZE, WIDE, PRECISION,
        )  # fmt: skip
        of_tokens += product(tl.trans(weights.to(above.dtype)), above, PRECISION)
        of_keys += product(tl.trans(of_products.to(queries.dtype)), queries, PRECISION)
    write_rows(dk, of_keys, x, j, source, size, SIZE)
    write_rows(dv, of_tokens, x, j, source, wide, WIDE)


@kernel
def differentiate_columns(
    q, p, k, v, vectors, numbers, values, lse, along, g, dvectors, dnumbers, dvalues, batch, heads,
    length, source, span, size, wide, blocks,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of columns of all tables, over all rows of the batch."""
    h, first = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * TILE
    of_vectors, of_values = (
        tl.zeros([TILE, SIZE], tl.float32),
        tl.zeros([TILE, WIDE], tl.float32),
    )
    of_numbers = tl.zeros([TILE], tl.float32)
    # queries of which a key stands in one of the columns
    begin = tl.maximum(length - first - TILE, 0) // TILE * TILE
    stop = tl.minimum(length, length - 1 - first + source)
    for b in range(batch):
        x = b * heads + h
        for start in range(begin, stop, TILE):
            i = start + tl.arange(0, TILE)
            queries, asking = read_queries(q, p, x, i, length, size, SIZE)
            above = read_rows(g, x, i, length, wide, WIDE)
            for half in range(2):
                # the first query meets the first column with the first of these two tiles of keys
                j = first - (length - 1) + start + half * TILE + tl.arange(0, TILE)
                band = first + 1 - TILE + half * TILE
                keys = read_rows(k, x, j, source, size, SIZE)
                tokens = read_rows(v, x, j, source, wide, WIDE)
                weights, ds, _, new = differentiate(
                    queries, asking, above, keys, tokens, vectors, numbers, values, lse, along, x,
                    h, i, j, band, length, source, span, size, wide, CAUSAL, FACTORS, TILE, SIZE,
                    WIDE, PRECISION,
                )  # fmt: skip
                if numbers is not None:
                    of_numbers += tl.sum(gathered(new, -half * TILE, TILE, TILE), 0)
                if vectors is not None:
                    by_column = gathered(ds, -half * TILE, TILE, TILE).to(asking.dtype)
                    of_vectors += product(tl.trans(by_column), asking, PRECISION)
                if values is not None:
                    by_column = gathered(weights, -half * TILE, TILE, TILE).to(above.dtype)
                    of_values += product(tl.trans(by_column), above, PRECISION)
    c = first + tl.arange(0, TILE)
    if numbers is not None:
        tl.store(dnumbers + h * span + c, of_numbers, c < span)
    if vectors is not None:
        write_rows(dvectors, of_vectors, h, c, span, size, SIZE)
    if values is not None:
        write_rows(dvalues, of_values, h, c, span, wide, WIDE)
