"""Attention in chunks of sorted tokens: every round sorts the tokens again, neighbours meet.

Round r puts the tokens of a row in an order of its own; the sorted tokens of all rounds, one round
after the other, are cut into chunks of C. The queries of a chunk see the keys of their own chunk,
of ``before`` chunks in front and of ``after`` chunks after it. One softmax weighs all keys that a
token sees in all rounds:

    o_i = sum_r sum_{j in window_r(i)} exp(s_ij - z_i) v_j,   z_i = log sum_r sum_j exp(s_ij)

A key that several rounds (or the two ends of a circular list) show counts as often, or with
``once`` one time: s_ij is lowered by log N_ij. A token sees itself only where it sees nothing else;
then o_i = v_i.

The list is walked in tiles of chunks that fit a cache; forward keeps o and z, and backward computes
the scores again (P = exp(s - z), dS = P * (dO V^T - rowsum(dO * O))). Un-sorting is a gather by the
inverse order, in both directions. Cost O(n_r L C (1 + before + after) (D + D_v)).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import at_once
from everyformer.engines.content.chunk_lists import (
    NEVER,
    ChunkList,
    ChunkPattern,
    hide_,
    lay_out,
    windows_of,
)
from everyformer.engines.drawing import draw_seed
from everyformer.engines.operators import operator
from everyformer.engines.products import add_product, halves, product
from everyformer.engines.ranges import fake, full_precision, returned, widened

_BITS = math.log2(math.e)
"""of one nat"""
SCORES = 2**19
"""that are held at a time on a CPU"""


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, pattern: ChunkPattern, *,
    real: Tensor | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention of every token to those that the list of chunks shows it: (X, L, D_v).

    Args:
        q, k, v: (X, L, D), (X, L, D), (X, L, D_v), the queries scaled.
        order: (X, rounds, L') int64, the tokens of each round in order, real ones first; L' is L
            or, with tokens that are not real, the next multiple of the chunk.
        real: (X, L') bool, which tokens may be seen (default: all).
        dropout: on the weights; its mask follows from torch's generator.
    """
    seed = draw_seed() if dropout > 0 else None
    return _sorted_chunks(q, k, v, order, real, seed, pattern.code(), dropout)[0]


def chunked_queries(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, pattern: ChunkPattern, where: Tensor, *,
    real: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`chunked_attention` of a few tokens of each row, at O(n) cost after the sort: (X, n, D_v).

    Args:
        where: (n,) int64, the positions of these tokens.
        (others as in `chunked_attention`)
    """
    layout = lay_out(order, real, pattern)
    slots = layout.slots[:, :, where].transpose(1, 2).flatten()
    window, at = slots // pattern.chunk, slots[:, None] % pattern.chunk
    chunks = window[:, None] + torch.arange(pattern.width, device=q.device)

    def of_queries(listed: Tensor) -> Tensor:
        return listed[window + pattern.before].gather(1, at)

    def of_keys(listed: Tensor) -> Tensor:
        return listed[chunks].flatten(1)

    hidden_keys = layout.hidden[window].repeat_interleave(pattern.chunk, 1)
    query_tokens, tokens = of_queries(layout.tokens), of_keys(layout.tokens)
    asking = layout.side(of_queries, lambda t: _taken(t, query_tokens))
    seen = layout.side(of_keys, lambda t: _taken(t, tokens))
    seen = seen._replace(position=seen.position.masked_fill(hidden_keys, NEVER))
    queries, keys = (
        _taken(_rows(widened(t), order), at) for t, at in ((q * _BITS, query_tokens), (k, tokens))
    )
    scores = hide_(queries @ keys.transpose(1, 2), asking, seen, layout.total[window], pattern)
    scores = scores.view(len(q), len(where), 1, -1)
    alone = (scores == -math.inf).all(-1, keepdim=True)
    weights = (scores.masked_fill(alone, 0.0) / _BITS).softmax(-1)
    values = _taken(_rows(widened(v), order), tokens).view(len(q), len(where), -1, v.shape[-1])
    own = v[:, where, None].to(weights.dtype)
    return torch.where(alone, own, weights @ values).squeeze(2).to(v.dtype)


class _Tile:
    """T windows of the list, as many as a cache holds."""

    def __init__(self, layout: ChunkList, pattern: ChunkPattern, start: int, stop: int) -> None:
        self.layout, self.pattern, self.start, self.stop = layout, pattern, start, stop
        self.queried = slice(start + pattern.before, stop + pattern.before)
        self.keys = slice(start, stop + pattern.width - 1)

    def queries(self, rows: Tensor) -> Tensor:
        """``rows`` (X L, n) of the queries: (T, C, n)."""
        return _taken(rows, self.layout.tokens[self.queried])

    def windows(self, rows: Tensor) -> Tensor:
        """``rows`` (X L, n) of the keys: (T, width C, n)."""
        return windows_of(_taken(rows, self.layout.tokens[self.keys]), self.pattern)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(T, C, width C) in bits, hidden ones -inf; ``q`` in bits too."""
        layout, pattern = self.layout, self.pattern
        hidden_keys = layout.hidden[self.start : self.stop].repeat_interleave(pattern.chunk, 1)
        asking = layout.side(lambda t: t[self.queried], self.queries)
        seen = layout.side(lambda t: windows_of(t[self.keys], pattern), self.windows)
        seen = seen._replace(position=seen.position.masked_fill(hidden_keys, NEVER))
        scores = product(q, k.mT, q.dtype is torch.bfloat16)
        return hide_(scores, asking, seen, layout.total[self.start : self.stop], pattern)

    def dropout(self, like: Tensor, seed: Tensor | None, rate: float) -> Tensor | None:
        """Factors of the weights ``like``, the same for the same seed."""
        if seed is None:
            return None
        generator = torch.Generator(like.device).manual_seed(int(seed) + self.start)
        return torch.empty_like(like).bernoulli_(1 - rate, generator=generator).div_(1 - rate)


def _tiles(layout: ChunkList, pattern: ChunkPattern) -> Iterator[_Tile]:
    numbers = at_once(SCORES, layout.tokens.device)
    step = max(1, numbers // (pattern.chunk**2 * pattern.width))
    last = len(layout.tokens) - pattern.width + 1
    for start in range(0, last, step):
        yield _Tile(layout, pattern, start, min(start + step, last))


def _rows(t: Tensor, order: Tensor) -> Tensor:
    """``t`` (X, L, n) with as many tokens as ``order`` has, one row after the other."""
    return F.pad(t, (0, 0, 0, order.shape[2] - t.shape[1])).flatten(0, 1)


def _factors(t: Tensor) -> Tensor:
    """``t`` as products take it."""
    return t if halves(t) else widened(t)


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    return rows.index_select(0, index.flatten()).view(*index.shape, *rows.shape[1:])


def _gathered(listed: Tensor, slots: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum over rounds of what ``listed`` (F C, n) holds at ``slots`` (X, rounds, L): (X, L, n)."""
    total: Tensor | None = None
    for number, at in enumerate(slots.unbind(1)):
        part = _taken(listed, at)
        if weights is not None:
            part = part.mul_(weights[:, number, :, None])
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _attend(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, real: Tensor | None,
    seed: Tensor | None, code: list[int], dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (X, L, D_v) and z (X, L), -inf where a token sees itself alone."""
    pattern = ChunkPattern.of(code)
    with full_precision(q):
        layout = lay_out(order, real, pattern)
        queries, keys, values = (_rows(_factors(t), order) for t in (q, k, v))
        queries, half = queries * _BITS, values.dtype is torch.bfloat16
        listed = widened(values[:0]).new_empty(*layout.tokens.shape, v.shape[-1])
        sums = listed.new_empty(layout.tokens.shape)
        lowest = torch.finfo(sums.dtype).min
        for tile in _tiles(layout, pattern):
            scores = tile.scores(tile.queries(queries), tile.windows(keys))
            top = scores.amax(-1, keepdim=True).clamp_(min=lowest)
            weights = scores.sub_(top).exp2_()
            total = weights.sum(-1, keepdim=True)
            factors = tile.dropout(weights, seed, dropout)
            weights = weights if factors is None else weights.mul_(factors)
            part = product(weights, tile.windows(values), half)
            listed[tile.start : tile.stop] = part.div_(total.clamp(min=1e-30))
            sums[tile.start : tile.stop] = total.log2_().add_(top).squeeze(-1)
        by_round = _taken(sums.flatten(), layout.slots).div_(_BITS)
        z = by_round.logsumexp(1)
        alone = z == -math.inf
        share = (by_round - z.masked_fill(alone, 0.0)[:, None]).exp_()
        o = _gathered(listed.flatten(0, 1), layout.slots, share)
        o = torch.where(alone[..., None], values.view_as(o).to(o.dtype), o)
    return returned(o[:, : v.shape[1]], v), z


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, real: Tensor | None,
    seed: Tensor | None, code: list[int], dropout: float, o: Tensor, z: Tensor, grad_o: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    pattern = ChunkPattern.of(code)
    with full_precision(q):
        layout = lay_out(order, real, pattern)
        queries, keys, values, grown = (_rows(_factors(t), order) for t in (q, k, v, grad_o))
        queries, half = queries * _BITS, values.dtype is torch.bfloat16
        alone = z == -math.inf
        sums = z.masked_fill(alone, 0.0).flatten()[:, None] * _BITS
        level = _rows((widened(grad_o) * o).sum(-1, keepdim=True), order)
        shape, size = layout.tokens.shape, pattern.chunk
        dq = level.new_empty(*shape, q.shape[-1])
        dk, dv = level.new_zeros(*shape, k.shape[-1]), level.new_zeros(*shape, v.shape[-1])
        for tile in _tiles(layout, pattern):
            start, stop = tile.start, tile.stop
            own, upper, window = tile.queries(queries), tile.queries(grown), tile.windows(keys)
            weights = tile.scores(own, window).sub_(tile.queries(sums)).exp2_()
            slopes = product(upper, tile.windows(values).mT, half)
            factors = tile.dropout(weights, seed, dropout)
            thinned = weights if factors is None else weights * factors
            slopes = slopes if factors is None else slopes.mul_(factors)
            slopes.sub_(tile.queries(level)).mul_(weights)
            dq[start:stop] = product(slopes, window, half)
            for n in range(pattern.width):
                part = slice(n * size, (n + 1) * size)
                add_product(dk[start + n : stop + n], slopes[:, :, part].mT, own, half)
                add_product(dv[start + n : stop + n], thinned[:, :, part].mT, upper, half)
        key_slots = layout.slots + pattern.before * size
        copied, into = layout.copies
        grads = [_gathered(dq.flatten(0, 1), layout.slots)]
        for listed in (dk, dv):
            listed.index_add_(0, into, listed[copied])
            grads.append(_gathered(listed.flatten(0, 1), key_slots))
        if real is not None:
            grads = [t.masked_fill_(~real[..., None], 0.0) for t in grads]
        grads[1] /= _BITS
        grads[2] += grown.view_as(grads[2]) * alone[..., None]
    dq, dk, dv = (t[:, : q.shape[1]] for t in grads)
    return returned(dq, q), returned(dk, k), returned(dv, v)


def _pairs(order: Any, code: list[int]) -> int:
    """Scores that are computed: rows, windows, queries and keys multiplied."""
    pattern, (many, rounds, length) = ChunkPattern.of(code), order
    windows = many * (rounds * (length // pattern.chunk) + pattern.width - 1)
    return windows * pattern.chunk**2 * pattern.width


_sorted_chunks, _ = operator(
    "sorted_chunks",
    _attend,
    _gradients,
    results=("o", "z"),
    inputs=("q", "k", "v"),
    shapes=lambda v, order: (fake(v), widened(v).new_empty(order.shape[0], order.shape[2])),
    flops=(
        lambda q, v, order, code: 2 * _pairs(order, code) * (q[2] + v[2]),
        lambda q, v, order, code: 2 * _pairs(order, code) * (3 * q[2] + 2 * v[2]),
    ),
)
