"""Exact search: every stored key is looked at, in blocks, where it lies on the disk.

By torch, and for many queries at once by faiss, where that is installed: there it is faster.
Float32 products choose a few keys more than k, whose distances are then taken from the keys
themselves; of many, only those that rounding may have put into a wrong order. Where rounding of
the products might have hidden a nearer key (keys far from the origin in comparison with their
distances) the query is searched again in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.errors import MissingExtraError
from everyformer.engines.content.nearest import Nearest, nearest
from everyformer.retrieval.approximate import faiss_for, of_all
from everyformer.retrieval.distances import ALIKE, Hits, normalised, ranked, settled
from everyformer.retrieval.options import Distance

BLOCK = 1 << 14
"""keys whose norms are computed at a time"""
BUDGET = 1 << 24
"""products at a time: threads that share their cores with others meet seldom"""
ROUNDING = 8 * 2.0**-24
"""of a product in float32, as a part of the product of norms"""
MANY = 128
"""neighbours of which not all are measured again"""
FOR_FAISS = 128_000
"""numbers of queries from which on faiss multiplies matrices; up to there torch is faster"""


class ExactSearch:
    """All of ``keys`` (n, width); norms, 8 bytes a key, are computed with the first search."""

    def __init__(self, keys: Tensor, distance: Distance) -> None:
        self._keys = keys
        self._distance = distance
        self._squares: Tensor | None = None

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest of ``queries`` (N, width) float32; k is at most the number of keys."""
        if self._squares is None:
            self._squares = squared_norms(self._keys)
        hits, doubtful = self._search(queries, k)
        if doubtful.any():
            again, _ = self._search(queries[doubtful].double(), k)
            for found, better in zip(hits, again, strict=True):
                found[doubtful] = better
        return hits

    def _search(self, queries: Tensor, k: int) -> tuple[Hits, Tensor]:
        """The nearest, and which queries may have nearer ones."""
        assert self._squares is not None
        count, exactly = len(self._keys), queries.dtype == torch.float64
        lengths = queries.double().square().sum(-1)
        fetched = min(count, k + max(8, k // 16))
        many = not exactly and queries.numel() >= FOR_FAISS
        found = self._by_faiss(queries, fetched) if many else None
        if found is None:
            found = self._by_torch(queries, lengths, fetched)
        if self._distance == "l2":
            spread = (lengths.sqrt() + self._squares.max().sqrt()).square()
            near = -found.scores
        else:
            spread = torch.ones_like(lengths)
            near = 1 - found.scores
        near, error = near.clamp(min=0), ROUNDING * spread
        if exactly or (k <= MANY and not many):
            hits = ranked(self._keys, queries, found.keys, k, self._distance)
        else:
            hits = settled(
                self._keys, queries, found.keys, k, self._distance, near=near, error=error
            )
        if fetched == count or exactly:
            return hits, torch.zeros_like(lengths, dtype=torch.bool)
        farthest = hits.distances[:, -1].double()
        others = (near[:, -1] - error).clamp(min=0)
        return hits, (farthest > others) & (error > ALIKE * farthest)

    def _by_torch(self, queries: Tensor, lengths: Tensor, count: int) -> Nearest:
        """As `of_all`; ``lengths`` are |q|^2."""
        assert self._squares is not None
        keys, squares = self._keys[None], self._squares[None]
        if self._distance == "l2":
            found = nearest((2 * queries)[None], keys, count, bias=-squares, budget=BUDGET)
            # in float64: numbers of this size are rounded by more than distances differ
            return Nearest(found.scores[0].double() - lengths[:, None], found.keys[0])
        asked, _ = normalised(queries)
        scale = squares.rsqrt().masked_fill(squares == 0, 0.0)
        found = nearest(asked[None], keys, count, scale=scale, budget=BUDGET)
        return Nearest(found.scores[0], found.keys[0])

    def _by_faiss(self, queries: Tensor, count: int) -> Nearest | None:
        """None where it is not installed."""
        try:
            faiss = faiss_for("exact")
        except MissingExtraError as error:
            take("exact search of many queries", "torch", f"not faiss: {error}")
            return None
        take("exact search of many queries", "faiss")
        return of_all(faiss, self._keys, queries, count, self._distance)


def squared_norms(keys: Tensor) -> Tensor:
    """|k|^2 of ``keys`` (n, width), in float64."""
    # into one tensor: blocks that are freed between results that stay would not be reused
    found = torch.empty(len(keys), dtype=torch.float64)
    for n in range(0, len(keys), BLOCK):
        found[n : n + BLOCK] = keys[n : n + BLOCK].double().square().sum(-1)
    return found
