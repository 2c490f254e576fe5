"""Exact search: every stored key is looked at, in blocks, where it lies on the disk.

By torch, and where it is installed and faster, by faiss: very few queries, of which it takes the
differences from the keys themselves, and many at once. Elsewhere float32 products choose a few keys
more than k, whose distances are then taken from the keys; of many neighbours, only those that
rounding may have put into a wrong order, and in searches of many queries only those that it may
have changed by more than `ALIKE`. Where it might have hidden a nearer key (keys far from the origin
in comparison with their distances) the query is searched again in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.errors import MissingExtraError
from everyformer.engines.content.nearest import nearest
from everyformer.retrieval.approximate import as_it_lies, faiss_for, of_all
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
FEW_FOR_FAISS = 512
"""numbers of queries up to which faiss is faster, by differences"""
BY_DIFFERENCES = 20
"""queries from which on it may take products: its versions before 1.15 do"""
MANY_FOR_FAISS = 128_000
"""numbers of queries from which on it is again, by products"""


class ExactSearch:
    """All of ``keys`` (n, width); norms, 8 bytes a key, are computed with the first search."""

    def __init__(self, keys: Tensor, distance: Distance) -> None:
        self._keys = keys
        self._distance = distance
        self._squares: Tensor | None = None
        self._faiss: Any = None
        self._spare = False

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest of ``queries`` (N, width) float32; k is at most the number of keys."""
        few = self._by_differences(queries, k)
        if few is not None:
            return few
        if self._squares is None:
            self._squares = squared_norms(self._keys)
        hits, doubtful = self._search(queries, k)
        if doubtful.any() and not self._spare:
            # products are rough for these keys: faiss is asked for more than k from now on
            self._spare = True
            hits, doubtful = self._search(queries, k)
        if doubtful.any():
            again, _ = self._search(queries[doubtful].double(), k)
            for found, better in zip(hits, again, strict=True):
                found[doubtful] = better
        return hits

    def _by_differences(self, queries: Tensor, k: int) -> Hits | None:
        """The nearest of very few queries; None where faiss might not take differences."""
        count = len(queries)
        if not 0 < queries.numel() <= FEW_FOR_FAISS or not as_it_lies(self._keys, self._distance):
            return None
        faiss = self._loaded() if count < BY_DIFFERENCES else None
        if faiss is None:
            return None
        # it is three times slower with one query than with two, measured on two threads
        asked = queries if count > 1 else queries.expand(2, -1)
        found = of_all(faiss, self._keys, asked, k, self._distance)
        return Hits(found.distances[:count], found.rows[:count])

    def _search(self, queries: Tensor, k: int) -> tuple[Hits, Tensor]:
        """The nearest, and which queries may have nearer ones."""
        assert self._squares is not None
        count, exactly = len(self._keys), queries.dtype == torch.float64
        lengths = queries.double().square().sum(-1)
        faiss = self._loaded() if not exactly and queries.numel() >= MANY_FOR_FAISS else None
        spare = max(8, k // 16) if faiss is None or self._spare else 0
        fetched = min(count, k + spare)
        if faiss is None:
            found = self._by_torch(queries, lengths, fetched)
        else:
            found = of_all(faiss, self._keys, queries, fetched, self._distance)
        near = found.distances.clamp_(min=0)
        if self._distance == "l2":
            spread = (lengths.sqrt() + self._squares.max().sqrt()).square()
        else:
            spread = torch.ones_like(lengths)
        error = ROUNDING * spread
        if exactly or (k <= MANY and faiss is None):
            hits = ranked(self._keys, queries, found.rows, k, self._distance)
        else:
            given = (self._keys, queries, found.rows, k, self._distance)
            hits = settled(*given, near=near, error=error, ordered=faiss is None)
        if fetched == count or exactly:
            return hits, torch.zeros_like(lengths, dtype=torch.bool)
        farthest = hits.distances[:, -1].double()
        others = (near[:, -1] - error).clamp(min=0)
        return hits, (farthest > others) & (error > ALIKE * farthest)

    def _by_torch(self, queries: Tensor, lengths: Tensor, count: int) -> Hits:
        """As `of_all`; ``lengths`` are |q|^2."""
        assert self._squares is not None
        keys, squares = self._keys[None], self._squares[None]
        if self._distance == "l2":
            found = nearest((2 * queries)[None], keys, count, bias=-squares, budget=BUDGET)
            # in float64: numbers of this size are rounded by more than distances differ
            return Hits(lengths[:, None] - found.scores[0].double(), found.keys[0])
        asked, _ = normalised(queries)
        scale = squares.rsqrt().masked_fill(squares == 0, 0.0)
        found = nearest(asked[None], keys, count, scale=scale, budget=BUDGET)
        return Hits(1 - found.scores[0], found.keys[0])

    def _loaded(self) -> Any:
        """The package of faiss; None where it is not installed."""
        if self._faiss is None:
            try:
                self._faiss = faiss_for("exact")
            except MissingExtraError as error:
                take("exact search", "torch", f"not faiss: {error}")
                return None
            take("exact search", "faiss")
        return self._faiss


def squared_norms(keys: Tensor) -> Tensor:
    """|k|^2 of ``keys`` (n, width), in float64."""
    # into one tensor: blocks that are freed between results that stay would not be reused
    found = torch.empty(len(keys), dtype=torch.float64)
    for n in range(0, len(keys), BLOCK):
        found[n : n + BLOCK] = keys[n : n + BLOCK].double().square().sum(-1)
    return found
