"""Exact search: every stored key against every query, in blocks, where it lies on the disk.

Blocks are compared by faiss where that is installed, else by products in torch. Both round in
float32, so a few keys more than k are taken, whose distances are then computed from the keys
themselves. Rounding grows with the squares of norms: of keys whose norms are about a thousand times
their distances a neighbour may be missed.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.errors import MissingExtraError
from everyformer.engines.content.best import largest
from sequence_laws.extras import extra_module

Distance = Literal["l2", "cosine"]

BLOCK = 1 << 14
"""keys that are read at a time"""
QUERIES = 1 << 10
"""queries that are compared with a block at a time"""
GATHERED = 1 << 24
"""numbers of keys that are gathered at a time"""


class Hits(NamedTuple):
    """The nearest keys of every query, nearest first."""

    distances: Tensor
    """(N, k) float32: squared Euclidean, or 1 - cos"""
    rows: Tensor
    """(N, k) int64 of the store"""


class ExactSearch:
    """Search among all of ``keys`` (n, width), which are read in blocks."""

    def __init__(self, keys: Tensor, distance: Distance) -> None:
        self._keys, self._distance = keys, distance
        self._faiss, self._why = None, ""
        try:
            self._faiss = extra_module("faiss", "knn", "searching a datastore", package="faiss-cpu")
        except MissingExtraError as error:
            self._why = f"not faiss: {error}"

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest of ``queries`` (N, width) float32; k is at most the number of keys."""
        take("exact search", "torch" if self._faiss is None else "faiss", self._why)
        fetched = min(len(self._keys), k + max(8, k // 16))
        parts = [
            ranked(self._keys, part, self._nearest(part, fetched), k, self._distance)
            for part in queries.split(QUERIES)
        ]
        return Hits(*map(torch.cat, zip(*parts, strict=True)))

    def _nearest(self, queries: Tensor, count: int) -> Tensor:
        """Rows (N, count) of the nearest keys, as rounded, of at most `QUERIES`."""
        vectors = compared(queries, self._distance)
        best = Hits(queries.new_empty(len(queries), 0), torch.empty(len(queries), 0).long())
        for first, block in blocks(self._keys, self._distance):
            near = self._compared(vectors, block, min(count, len(block)))
            distances = torch.cat((best.distances, near.distances), -1)
            rows = torch.cat((best.rows, near.rows + first), -1)
            values, order = distances.topk(min(count, distances.shape[1]), largest=False)
            best = Hits(values, rows.gather(-1, order))
        return best.rows

    def _compared(self, queries: Tensor, block: Tensor, count: int) -> Hits:
        """The ``count`` nearest of a block (m, width)."""
        faiss, cosine = self._faiss, self._distance == "cosine"
        if faiss is not None:
            metric = faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2
            hits = faiss.knn(queries.numpy(), block.numpy(), count, metric=metric)
            scores, rows = map(torch.from_numpy, hits)
            return Hits(1 - scores if cosine else scores, rows)
        if cosine:
            scores, rows = largest(queries @ block.mT, count)
            return Hits(1 - scores, rows)
        squares = block.square().sum(-1)
        scores, rows = largest(torch.addmm(squares, queries, block.mT, alpha=2, beta=-1), count)
        return Hits(queries.square().sum(-1, keepdim=True) - scores, rows)


def ranked(keys: Tensor, queries: Tensor, rows: Tensor, k: int, distance: Distance) -> Hits:
    """The ``k`` nearest of the keys at ``rows`` (N, F), F >= k.

    Differences are taken before they are squared, so that near keys far from the origin keep their
    distances; 1 - cos is half the square between unit vectors.
    Equally near keys stand in the order of their rows.
    """
    rows = rows.sort(dim=-1).values
    step = max(1, GATHERED // max(1, rows.shape[1] * keys.shape[1]))
    parts = zip(queries.split(step), rows.split(step), strict=True)
    distances = torch.cat([_distances(keys, *part, distance) for part in parts])
    best = distances.sort(dim=-1, stable=True)
    return Hits(best.values[:, :k].float(), rows.gather(-1, best.indices)[:, :k])


def _distances(keys: Tensor, queries: Tensor, rows: Tensor, distance: Distance) -> Tensor:
    gathered = keys.index_select(0, rows.flatten())
    gathered = gathered.float().view(*rows.shape, keys.shape[1])
    if distance == "l2":
        return torch.linalg.vector_norm(gathered.sub_(queries[:, None]), dim=-1).square_()
    unit, zero = normalised(gathered)
    query, nothing = normalised(queries[:, None])
    return (unit - query).square_().sum(-1).div_(2).masked_fill_(zero | nothing, 1.0)


def normalised(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors along the last dimension, and which are none because they are zero."""
    norms = vectors.norm(dim=-1, keepdim=True)
    zero = norms == 0
    return vectors / norms.masked_fill(zero, 1.0), zero[..., 0]


def blocks(keys: Tensor, distance: Distance) -> Iterator[tuple[int, Tensor]]:
    """First rows, and `BLOCK` keys from there on as `compared`."""
    for first in range(0, len(keys), BLOCK):
        yield first, compared(keys[first : first + BLOCK], distance)


def compared(keys: Tensor, distance: Distance) -> Tensor:
    """Keys or queries as their products are taken: in float32, of cosines as unit vectors."""
    vectors = keys.float()
    return (normalised(vectors)[0] if distance == "cosine" else vectors).contiguous()
