"""Distances between queries and stored keys, from the keys themselves, without cancellation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.retrieval.options import Distance

BUDGET = 1 << 24
"""numbers of keys that are gathered at a time"""
ALIKE = 1e-5
"""part by which distances may differ and be taken for equal"""


class Hits(NamedTuple):
    """The nearest keys of every query, nearest first."""

    distances: Tensor
    """(N, k) float32: squared Euclidean, or 1 - cos; inf where too few were found"""
    rows: Tensor
    """(N, k) int64 of the store; -1 where too few were found"""


def ranked(keys: Tensor, queries: Tensor, rows: Tensor, k: int, distance: Distance) -> Hits:
    """The ``k`` nearest of the keys at ``rows`` (N, F), of which -1 is none.

    Differences are taken in the dtype of ``queries`` before they are squared, so that near keys
    far from the origin keep their distances; 1 - cos is half the square between unit vectors.
    """
    fetched = rows.shape[1]
    step = max(1, BUDGET // max(1, fetched * keys.shape[1]))
    found = torch.cat(
        [
            _distances(keys, queries[n : n + step], rows[n : n + step], distance)
            for n in range(0, len(rows), step)
        ]
        or [queries.new_empty(0, fetched)]
    ).masked_fill(rows < 0, math.inf)
    best = found.sort(dim=-1, stable=True)
    taken = rows.gather(-1, best.indices)[:, :k]
    missing = (0, k - taken.shape[1])
    return Hits(
        torch.nn.functional.pad(best.values[:, :k].float(), missing, value=math.inf),
        torch.nn.functional.pad(taken, missing, value=-1),
    )


def settled(
    keys: Tensor,
    queries: Tensor,
    rows: Tensor,
    k: int,
    distance: Distance,
    *,
    near: Tensor,
    error: Tensor,
    ordered: bool = True,
) -> Hits:
    """As `ranked`, of rising distances ``near`` (N, F) that are wrong by up to ``error`` (N,).

    Only those are computed whose order that leaves open, or of which it is more than `ALIKE`: of a
    thousand neighbours a few dozen. The others are returned as they are. Where they need not be
    ``ordered``, such as are taken for equal stand in any order.
    """
    fetched, error = rows.shape[1], error.to(near.dtype)[:, None]
    unsure = error > ALIKE * near
    if not ordered and not unsure.any():
        return Hits(near[:, :k].float(), rows[:, :k])
    close = near.diff(dim=-1) <= 2 * error
    if not ordered:
        close &= unsure[:, 1:]
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    at = unsure.flatten().nonzero()[:, 0]
    if 2 * len(at) > rows.numel():
        return ranked(keys, queries, rows, k, distance)
    asked, step = rows.flatten()[at], max(1, BUDGET // keys.shape[1])
    found = [
        _distances(keys, queries[part // fetched], rows.view(-1)[part, None], distance)[:, 0]
        for part in at.split(step)
    ]
    # runs of distances that may stand in another order; each is sorted where it stands
    run = torch.nn.functional.pad(~close, (1, 0), value=True).flatten().cumsum(0)[at]
    values, order = torch.cat(found).sort()
    back = run[order].sort(stable=True).indices
    distances, hits = near.to(torch.float32, copy=True), rows.clone()
    distances.view(-1)[at], hits.view(-1)[at] = values[back].float(), asked[order[back]]
    return Hits(distances[:, :k], hits[:, :k])


def _distances(keys: Tensor, queries: Tensor, rows: Tensor, distance: Distance) -> Tensor:
    gathered = keys.index_select(0, rows.clamp(min=0).flatten())
    gathered = gathered.to(queries.dtype).view(*rows.shape, keys.shape[1])
    if distance == "l2":
        return torch.linalg.vector_norm(gathered.sub_(queries[:, None]), dim=-1).square_()
    unit, zero = normalised(gathered)
    asked, nothing = normalised(queries[:, None])
    return (unit - asked).square_().sum(-1).div_(2).masked_fill_(zero | nothing, 1.0)


def normalised(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors along the last dimension, and which are none because they are zero."""
    norms = vectors.norm(dim=-1, keepdim=True)
    zero = norms == 0
    return vectors / norms.masked_fill(zero, 1.0), zero[..., 0]
