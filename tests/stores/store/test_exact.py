"""Exact search is a sort of all distances, by faiss and by torch, however products are rounded."""

import sys
from typing import Any

import pytest
import torch
from store_stand_ins import every_distance
from torch import Tensor

from everyformer.core.dispatch import watched
from everyformer.stores.store import exact
from everyformer.stores.store.exact import ExactSearch
from helpers import close, covering, draw

WIDTH = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("BLOCK", 64), ("QUERIES", 5), ("GATHERED", 1000)):
        monkeypatch.setattr(exact, name, size)


@pytest.fixture(params=["torch", "faiss"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "faiss":
        pytest.importorskip("faiss")
    else:
        monkeypatch.setitem(sys.modules, "faiss", None)
    return request.param


def spread(kind: str) -> Tensor:
    """300 keys: normal, far from the origin, or with every third twice, exactly or nearly."""
    keys = draw(300, WIDTH, dtype=torch.float32)
    if kind in ("twice", "alike"):
        move = 1e-6 * draw(100, WIDTH, seed=4, dtype=torch.float32)
        keys[::3] = keys[1::3] + (move if kind == "alike" else 0)
    return keys + (100 if kind == "far" else 0)


@covering(
    distance=["l2", "cosine"],
    dtype=[torch.float16, torch.float32],
    kind=["normal", "far", "twice", "alike"],
)
def test_hits_are_those_of_a_sort_of_all_distances(way, distance, dtype, kind):
    """Blocks of 64 keys have fewer than 200."""
    keys = spread(kind).to(dtype)
    queries = keys[:9].float() + draw(9, WIDTH, seed=2, dtype=torch.float32)
    expected = every_distance(keys, queries, distance)
    for k in (1, 7, 200, 300):
        with watched() as ways:
            hits = ExactSearch(keys, distance).search(queries, k)
        assert ways[0][:2] == ("exact search", way)
        assert hits.distances.dtype == torch.float32
        close(hits.distances.double(), expected.sort(-1).values[:, :k], 1e-5)
        # equally near keys may stand for one another, none twice
        close(expected.gather(-1, hits.rows), expected.sort(-1).values[:, :k], 3e-7)
        assert all(len(set(row.tolist())) == k for row in hits.rows)
        assert (hits.distances.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_faiss_and_torch_find_the_same(distance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    keys, queries = draw(300, WIDTH).float(), draw(30, WIDTH, seed=2).float()
    by_faiss = ExactSearch(keys, distance).search(queries, 9)
    monkeypatch.setitem(sys.modules, "faiss", None)
    by_torch = ExactSearch(keys, distance).search(queries, 9)
    assert torch.equal(by_faiss.rows, by_torch.rows)
    assert torch.equal(by_faiss.distances, by_torch.distances)


def test_without_faiss_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with watched() as ways:
        ExactSearch(draw(9, WIDTH).float(), "l2").search(torch.zeros(1, WIDTH), 2)
    assert "pip install 'everyformer[knn]'" in ways[0].why


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_a_key_itself_is_at_distance_0(way: str, distance: Any) -> None:
    keys = 100 + draw(90, WIDTH, dtype=torch.float32)
    hits = ExactSearch(keys, distance).search(keys, 2)
    assert torch.equal(hits.rows[:, 0], torch.arange(90))
    assert (hits.distances[:, 0] <= 1e-14).all()
    assert (hits.distances[:, 1] > 0).all()
    # equal ones are all found, and none twice
    hits = ExactSearch(keys[:3].repeat(50, 1), distance).search(keys[:3], 50)
    assert (hits.distances <= 1e-14).all()
    assert torch.equal(hits.rows.sort(-1).values, torch.arange(3)[:, None] + 3 * torch.arange(50))


def test_a_vector_of_zeros_has_the_cosine_0(way: str) -> None:
    keys = draw(30, WIDTH, dtype=torch.float32)
    keys[4] = 0
    search = ExactSearch(keys, "cosine")
    hits = search.search(torch.cat((keys[:1], keys[4:5])), 30)
    assert hits.distances[0][hits.rows[0] == 4].item() == 1
    assert (hits.distances[1] == 1).all()
    few = search.search(torch.zeros(1, WIDTH), 5)
    assert (few.distances == 1).all()
    assert len(set(few.rows[0].tolist())) == 5


def test_permuted_keys_permute_the_result(way: str) -> None:
    keys, queries = draw(150, WIDTH).float(), draw(6, WIDTH, seed=3).float()
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    one, other = (ExactSearch(k, "l2").search(queries, 9) for k in (keys, keys[order]))
    assert torch.equal(one.rows, order[other.rows])
    assert torch.equal(one.distances, other.distances)


def test_no_more_is_written_than_blocks(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys 64 at a time, with 5 queries each."""
    shapes = []
    compared = ExactSearch._compared

    def watched_blocks(self: Any, queries: Tensor, block: Tensor, count: int) -> Any:
        shapes.append((len(queries), len(block)))
        return compared(self, queries, block, count)

    monkeypatch.setattr(ExactSearch, "_compared", watched_blocks)
    ExactSearch(draw(150, WIDTH).half(), "l2").search(draw(7, WIDTH).float(), 3)
    assert shapes == [(n, m) for n in (5, 2) for m in (64, 64, 22)]
