"""Averages of every block of queries, the keys' tiles in turn."""

import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.dense.tiles import LOWEST
from everyformer.engines.fused.distances.tiles import (
    band_of,
    gathered,
    read_queries,
    read_rows,
    score,
    write_rows,
)
from everyformer.engines.fused.kernel.states import product


@kernel
def average(
    q, p, k, v, vectors, numbers, values, o, lse, heads, length, source, span, size, wide,
    row_blocks,
    CAUSAL: tl.constexpr, FACTORS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and the log-sums of the weights."""
    x = (tl.program_id(0) // row_blocks).to(tl.int64)
    h, first = x % heads, tl.program_id(0) % row_blocks * TILE
    i = first + tl.arange(0, TILE)
    queries, asking = read_queries(q, p, x, i, length, size, SIZE)
    stop = source
    if CAUSAL:
        stop = tl.minimum(source, tl.minimum(first + TILE, length) + source - length)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total, summed = tl.zeros([TILE], tl.float32), tl.zeros([TILE, WIDE], tl.float32)
    for start in range(0, stop, TILE):
        j, band = start + tl.arange(0, TILE), length - TILE - first + start
        keys = read_rows(k, x, j, source, size, SIZE)
        scores, _, _ = score(
            queries, asking, keys, vectors, numbers, h, i, j, band, length, source, span, size,
            CAUSAL, FACTORS, TILE, SIZE, PRECISION,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(scores, 1))
        reached = tl.maximum(higher, LOWEST)
        weights, fade = tl.exp(scores - reached[:, None]), tl.exp(top - reached)
        tokens = read_rows(v, x, j, source, wide, WIDE)
        new = product(weights.to(tokens.dtype), tokens, PRECISION)
        if values is not None:
            rows = band_of(values, h, band, span, wide, TILE, WIDE)
            by_column = gathered(weights, 1 - TILE, 2 * TILE, TILE)
            new += product(by_column.to(rows.dtype), rows, PRECISION)
        total = total * fade + tl.sum(weights, 1)
        summed = summed * fade[:, None] + new
        top = higher
    found = summed / tl.where(total > 0, total, 1.0)[:, None]
    write_rows(o, found, x, i, length, wide, WIDE)
    tl.store(lse + x * length + i, tl.maximum(top, LOWEST) + tl.log(total), i < length)
