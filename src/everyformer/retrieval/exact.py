"""Exact search by torch: every stored key is looked at, in blocks, where it lies on the disk.

Float32 products choose a few keys more than k, whose distances are then taken from the keys
themselves; of many, only those that rounding may have put into a wrong order. Where rounding of
the products might have hidden a nearer key (keys far from the origin in comparison with their
distances) the query is searched again in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from everyformer.engines.content.nearest import nearest
from everyformer.retrieval.distances import ALIKE, Hits, normalised, ranked, settled
from everyformer.retrieval.options import Distance
from everyformer.retrieval.store import Store

BLOCK = 1 << 14
"""keys whose norms are computed at a time"""
BUDGET = 1 << 24
"""products at a time: threads that share their cores with others meet seldom"""
ROUNDING = 8 * 2.0**-24
"""of a product in float32, as a part of the product of norms"""
MANY = 128
"""neighbours of which not all are measured again"""


class ExactSearch:
    """All keys of ``store``; the norms, 8 bytes a key, are computed with the first search."""

    def __init__(self, store: Store, distance: Distance) -> None:
        self._keys = store.key_tensor
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
        squares, count = self._squares, len(self._keys)
        lengths = queries.double().square().sum(-1)
        fetched = min(count, k + max(8, k // 16))
        if self._distance == "l2":
            found = nearest(
                (2 * queries)[None], self._keys[None], fetched, bias=-squares[None], budget=BUDGET
            )
            offset, spread = lengths, (lengths.sqrt() + squares.max().sqrt()).square()
        else:
            asked, _ = normalised(queries)
            scale = squares.rsqrt().masked_fill(squares == 0, 0.0)
            found = nearest(
                asked[None], self._keys[None], fetched, scale=scale[None], budget=BUDGET
            )
            offset, spread = torch.ones_like(lengths), torch.ones_like(lengths)
        rows, error = found.keys[0], ROUNDING * spread
        if queries.dtype == torch.float64 or k <= MANY:
            hits = ranked(self._keys, queries, rows, k, self._distance)
        else:
            near = (offset[:, None] - found.scores[0].double()).clamp(min=0)
            hits = settled(self._keys, queries, rows, k, self._distance, near=near, error=error)
        if fetched == count or queries.dtype == torch.float64:
            return hits, torch.zeros_like(lengths, dtype=torch.bool)
        farthest = hits.distances[:, -1].double()
        others = (offset - found.scores[0, :, -1].double() - error).clamp(min=0)
        return hits, (farthest > others) & (error > ALIKE * farthest)


def squared_norms(keys: Tensor) -> Tensor:
    """|k|^2 of ``keys`` (n, width), in float64."""
    # into one tensor: blocks that are freed between results that stay would not be reused
    found = torch.empty(len(keys), dtype=torch.float64)
    for n in range(0, len(keys), BLOCK):
        found[n : n + BLOCK] = keys[n : n + BLOCK].double().square().sum(-1)
    return found
