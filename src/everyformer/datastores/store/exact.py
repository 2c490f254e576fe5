"""Exact search: every stored key against every query, in blocks, where it lies on the disk.

Blocks are compared by faiss where that is installed, else by products in torch. Both round in
float32, so a few keys more than k are taken, whose distances are then computed from the keys
themselves. A query for which rounding may have hidden a nearer key (keys far from the origin in
comparison with their distances) is searched again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.errors import MissingExtraError
from everyformer.datastores.store.options import Distance
from everyformer.engines.content.best import largest
from everyformer.system.extras import extra_module

BLOCK = 1 << 16
"""keys that are read at a time"""
QUERIES = 1 << 8
"""queries that are compared with a block at a time"""
GATHERED = 1 << 24
"""numbers of keys that are gathered at a time"""
ROUNDING = 8 * 2.0**-24
"""error of a product in float32, as a part of the product of norms"""
ALIKE = 1e-5
"""part by which distances may differ and count as equal"""


class Hits(NamedTuple):
    """The nearest keys of every query, nearest first."""

    distances: Tensor
    """(N, k) float32: squared Euclidean, or 1 - cos; inf where too few were found"""
    rows: Tensor
    """(N, k) int64 of the store; -1 where too few were found"""


class ExactSearch:
    """Search among all of ``keys`` (n, width), which are read in blocks.

    Args:
        flat: by faiss alone.

    Raises:
        MissingExtraError: ``flat``, and faiss is not installed.
    """

    def __init__(self, keys: Tensor, distance: Distance, flat: bool = False) -> None:
        self._keys, self._distance = keys, distance
        self._faiss, self._why = None, ""
        try:
            self._faiss = faiss_for("flat" if flat else "exact")
        except MissingExtraError as error:
            if flat:
                raise
            self._why = f"not faiss: {error}"

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest of ``queries`` (N, width) float32; k is at most the number of keys."""
        take("exact search", "torch" if self._faiss is None else "faiss", self._why)
        parts = [self._search(part, k) for part in queries.split(QUERIES)]
        return Hits(*map(torch.cat, zip(*parts, strict=True)))

    def _search(self, queries: Tensor, k: int) -> Hits:
        """`search` of at most `QUERIES`."""
        fetched = min(len(self._keys), k + max(8, k // 16))
        near = self._nearest(queries, fetched)
        hits = ranked(self._keys, queries, near.rows, k, self._distance)
        if fetched < len(self._keys):
            doubtful = self._doubtful(queries, near.distances[:, -1], hits.distances[:, -1])
            if doubtful.any():
                wide = queries[doubtful].double()
                again = self._nearest(wide, k)
                again = ranked(self._keys, wide, again.rows, k, self._distance)
                for part, exact in zip(hits, again, strict=True):
                    part[doubtful] = exact
        return hits

    def _nearest(self, queries: Tensor, count: int) -> Hits:
        """The ``count`` nearest as rounded in the dtype of ``queries``."""
        vectors = compared(queries, self._distance, queries.dtype)
        best = Hits(queries.new_empty(len(queries), 0), torch.empty(len(queries), 0).long())
        for first, block in blocks(self._keys, self._distance, queries.dtype):
            near = self._compared(vectors, block, min(count, len(block)))
            distances = torch.cat((best.distances, near.distances), -1)
            rows = torch.cat((best.rows, near.rows + first), -1)
            values, order = distances.topk(min(count, distances.shape[1]), largest=False)
            best = Hits(values, rows.gather(-1, order))
        return best

    def _compared(self, queries: Tensor, block: Tensor, count: int) -> Hits:
        """The ``count`` nearest of a block (m, width) of the dtype of the queries."""
        faiss, cosine = self._faiss, self._distance == "cosine"
        if faiss is not None and queries.dtype == torch.float32:
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

    def _doubtful(self, queries: Tensor, others: Tensor, farthest: Tensor) -> Tensor:
        """Queries (N,) of which a key that was not taken may be nearer than the ``farthest`` hit.

        Args:
            others: (N,) how far all keys are that were not taken, as rounded, or farther.
        """
        error = torch.full((len(queries),), 4 * ROUNDING, dtype=torch.float64)
        if self._distance == "l2":
            error = ROUNDING * (queries.double().norm(dim=-1) + self._longest).square()
        return (farthest > (others - error).clamp(min=0)) & (error > ALIKE * farthest)

    @cached_property
    def _longest(self) -> float:
        """The largest norm of a key."""
        norms = (block.norm(dim=-1).max() for _, block in blocks(self._keys, "l2"))
        return max(map(float, norms))


def ranked(keys: Tensor, queries: Tensor, rows: Tensor, k: int, distance: Distance) -> Hits:
    """The ``k`` nearest of the keys at ``rows`` (N, F), of which -1 is none.

    Differences are taken in the dtype of ``queries`` before they are squared, so that near keys
    far from the origin keep their distances; 1 - cos is half the square between unit vectors.
    Equally near keys stand in the order of their rows.
    """
    rows = rows.sort(dim=-1).values
    step = max(1, GATHERED // max(1, rows.shape[1] * keys.shape[1]))
    parts = zip(queries.split(step), rows.split(step), strict=True)
    distances = torch.cat([_distances(keys, *part, distance) for part in parts])
    best = distances.masked_fill(rows < 0, math.inf).sort(dim=-1, stable=True)
    nearest = rows.gather(-1, best.indices)[:, :k]
    missing = (0, k - nearest.shape[1])
    return Hits(
        torch.nn.functional.pad(best.values[:, :k].float(), missing, value=math.inf),
        torch.nn.functional.pad(nearest, missing, value=-1),
    )


def _distances(keys: Tensor, queries: Tensor, rows: Tensor, distance: Distance) -> Tensor:
    gathered = keys.index_select(0, rows.clamp(min=0).flatten())
    gathered = gathered.to(queries.dtype).view(*rows.shape, keys.shape[1])
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


def blocks(
    keys: Tensor, distance: Distance, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[int, Tensor]]:
    """First rows, and `BLOCK` keys from there on as `compared`."""
    for first in range(0, len(keys), BLOCK):
        yield first, compared(keys[first : first + BLOCK], distance, dtype)


def compared(keys: Tensor, distance: Distance, dtype: torch.dtype = torch.float32) -> Tensor:
    """Keys or queries as their products are taken: in ``dtype``, of cosines as unit vectors."""
    vectors = keys.to(dtype)
    return (normalised(vectors)[0] if distance == "cosine" else vectors).contiguous()


def faiss_for(kind: str) -> Any:
    """The package faiss.

    Raises:
        MissingExtraError: it is not installed.
    """
    return extra_module("faiss", "knn", f"searching with '{kind}'", package="faiss-cpu")
