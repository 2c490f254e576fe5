"""Exact search misses no nearer key, however its products are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from everyformer.retrieval import exact
from everyformer.retrieval.exact import ExactSearch

STORES = range(50)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Keys (n, width) and queries of float32, spread around a place that may lie far away, and k.

    From a hundredth to a hundred thousand times as far as they are spread.
    """
    draw = np.random.default_rng(seed)
    n, width, k = draw.integers(60, 400), draw.integers(2, 32), draw.integers(1, 9)
    spread = 10.0 ** draw.integers(-3, 2)
    place = spread * 10.0 ** draw.uniform(-2, 5) * draw.standard_normal(width)
    keys, queries = (place + spread * draw.standard_normal((m, width)) for m in (n, 12))
    return keys.astype(np.float32), queries.astype(np.float32), int(k)


def nearest(keys: np.ndarray, queries: np.ndarray, k: int, distance: str) -> np.ndarray:
    """The k smallest distances of each query, from differences in float64, sorted."""
    wide = [rows.astype(np.float64) for rows in (keys, queries)]
    if distance == "cosine":
        wide = [rows / np.sqrt((rows * rows).sum(1, keepdims=True)) for rows in wide]
    found = []
    for query in wide[1]:
        squares = ((wide[0] - query) ** 2).sum(1)
        found.append(np.sort(squares if distance == "l2" else squares / 2)[:k])
    return np.array(found)


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("way", ["torch", "faiss"])
def test_no_nearer_key_is_hidden_by_rounding(
    way: str, distance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distances in order say it: equally near keys may stand for one another."""
    if way == "faiss":
        pytest.importorskip("faiss")
    monkeypatch.setattr(exact, "FEW_FOR_FAISS", 0)
    monkeypatch.setattr(exact, "MANY_FOR_FAISS", 0 if way == "faiss" else 1 << 30)
    wrong = []
    for seed in STORES:
        keys, queries, k = drawn(seed)
        hits = ExactSearch(torch.from_numpy(keys), distance).search(torch.from_numpy(queries), k)
        expected = nearest(keys, queries, k, distance)
        # cosines: of unit vectors that are rounded to float32 before their difference is taken
        error = 1e-4 * expected + (0 if distance == "l2" else 1e-6 * np.sqrt(expected))
        if (np.abs(hits.distances.double().numpy() - expected) > error).any():
            wrong.append(seed)
    assert wrong == []
