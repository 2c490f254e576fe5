"""Neighbours of a store: those of a sort of all distances, and what cannot be asked."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from store_stand_ins import ORIGIN, every_distance
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError, ShapeError
from everyformer.stores.store.index import Index
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer
from helpers import close, draw

WIDTH = 8


def stored(folder: Path, keys: Tensor, dtype: Any = "float32") -> Store:
    with Writer.create(folder, ORIGIN, keys.shape[1], dtype) as writer:
        writer.add(keys, torch.arange(len(keys)))
        writer.finish()
    return Store.open(folder)


@pytest.mark.parametrize(("distance", "dtype"), [("l2", "float16"), ("cosine", "float32")])
def test_neighbours_are_those_of_a_sort_of_all_stored_keys(tmp_path, dtype, distance):
    store, queries = stored(tmp_path, draw(300, WIDTH), dtype), draw(12, WIDTH, seed=4).bfloat16()
    expected = every_distance(store.key_tensor, queries.float(), distance).sort(-1)
    hits = Index(store, distance).search(queries, 20)
    assert torch.equal(hits.rows, expected.indices[:, :20])
    close(hits.distances.double(), expected.values[:, :20], 1e-5)
    none = Index(store, distance).search(torch.zeros(0, WIDTH), 4)
    assert none.distances.shape == none.rows.shape == (0, 4)


@pytest.mark.parametrize(
    ("queries", "k", "error", "told"),
    [
        (torch.zeros(1, WIDTH), 51, ConfigError, "`k=51` neighbours .* store of 50 keys: give k"),
        (torch.zeros(1, WIDTH), 0, ConfigError, "`k=0` neighbours"),
        (torch.zeros(1, 3), 1, ShapeError, r"shape \(N, 8\), not torch.float32 of \(1, 3\)"),
        (torch.zeros(WIDTH), 1, ShapeError, r"shape \(N, 8\), not torch.float32 of \(8,\)"),
        (torch.zeros(1, WIDTH).long(), 1, ShapeError, "floats of shape .* not torch.int64"),
        (torch.tensor([[0.0] * 8, [math.nan] * 8]), 1, DataError, "query 1 is not finite"),
    ],
)
def test_what_cannot_be_asked(tmp_path, queries, k, error, told):
    index = Index(stored(tmp_path, draw(50, WIDTH)))
    with pytest.raises(error, match=told):
        index.search(queries, k)
