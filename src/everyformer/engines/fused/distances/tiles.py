"""Tiles of queries and keys: what is read, the scores, and columns laid askew."""

import triton
import triton.language as tl

from everyformer.engines.fused.kernel.states import product


@triton.jit
def read_rows(t, x, rows, count, channels, WIDTH: tl.constexpr):
    """Rows of row ``x`` of ``t`` (X, count, channels), zeros where there are none."""
    c = tl.arange(0, WIDTH)
    here = ((rows >= 0) & (rows < count))[:, None] & (c < channels)[None, :]
    return tl.load(t + (x * count + rows[:, None]) * channels + c[None, :], here, 0.0)


@triton.jit
def read_queries(q, p, x, i, length, size, SIZE: tl.constexpr):
    """Queries that keys are compared with, and those for vectors, which may be the same."""
    queries = read_rows(q, x, i, length, size, SIZE)
    asking = queries
    if p is not None:
        asking = read_rows(p, x, i, length, size, SIZE)
    return queries, asking


@triton.jit
def write_rows(t, tile, x, rows, count, channels, WIDTH: tl.constexpr):
    """Put a tile where `read_rows` would read it."""
    c = tl.arange(0, WIDTH)
    here = ((rows >= 0) & (rows < count))[:, None] & (c < channels)[None, :]
    tl.store(t + (x * count + rows[:, None]) * channels + c[None, :], tile, here)


@triton.jit
def laid(columns, TILE: tl.constexpr):
    """Pairs (R, R) of columns (R, 2 R): pair (a, b) is column R - 1 - a + b of row a."""
    a, b = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    return tl.gather(columns, TILE - 1 - a + b, 1)


@triton.jit
def gathered(pairs, first, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    """Columns (R, COLUMNS) of pairs (R, R): column m of row a is pair (a, ``first`` + m + a)."""
    b = first + tl.arange(0, COLUMNS)[None, :] + tl.arange(0, TILE)[:, None]
    found = tl.gather(pairs, tl.minimum(tl.maximum(b, 0), TILE - 1), 1)
    return tl.where((b >= 0) & (b < TILE), found, 0.0)


@triton.jit
def band_of(t, h, first, span, channels, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """2 R rows of a table (H, span, channels), those that a tile's pairs meet."""
    return read_rows(t, h, first + tl.arange(0, 2 * TILE), span, channels, WIDTH)


@triton.jit
def score(
    queries, asking, keys, vectors, numbers, h, i, j, band, length, source, span, size,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (R, R), -inf of what is not seen; products of queries and keys, and their factors.

    ``band`` is the first column that a pair of the tile meets.
    """
    products = product(queries, tl.trans(keys), PRECISION)
    c = length - 1 - i[:, None] + j[None, :]
    there = (c >= 0) & (c < span)
    scores, factors = products, products
    if vectors is not None:
        rows = band_of(vectors, h, band, span, size, TILE, SIZE)
        scores += laid(product(asking, tl.trans(rows), PRECISION), TILE)
    if numbers is not None:
        by_distance = tl.load(numbers + h * span + c, there, 0.0).to(tl.float32)
        if FACTORS:
            factors = by_distance
            scores = tl.maximum(products, 0.0) * factors
        else:
            scores += by_distance
    mask = (i < length)[:, None] & ((j >= 0) & (j < source))[None, :]
    if CAUSAL:
        mask = mask & (j[None, :] <= i[:, None] + source - length)
    return tl.where(mask, scores, float("-inf")), products, factors
