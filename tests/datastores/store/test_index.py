"""Neighbours of a store: exact ones by brute force, the others by what they find of those."""

import dataclasses
import importlib.util
import math
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datastores.store.stores import ORIGIN, content, every_distance, write
from everyformer.core.errors import (
    ConfigError,
    DataError,
    EveryformerError,
    MissingExtraError,
    ShapeError,
    UnsavedError,
)
from everyformer.datastores.store import approximate, exact
from everyformer.datastores.store.index import SearchOptions, _others, build_index, open_index
from everyformer.datastores.store.store import Store
from everyformer.datastores.store.writing import Writer
from everyformer.system.sealed import DamagedError
from helpers import close, draw

WIDTH = 8
KEPT = ["ivf", "ivfpq", "hnsw"]


with_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss")


def stored(folder: Path, keys: Tensor, dtype: str = "float32") -> Store:
    with Writer.create(folder, ORIGIN, keys.shape[1], dtype) as writer:  # type: ignore[arg-type]
        writer.document("all")
        writer.add(keys, torch.arange(len(keys)))
        writer.finish()
    return Store.open(folder)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyformer.datastores.store.exact.BLOCK", 50)
    monkeypatch.setattr("everyformer.datastores.store.exact.GATHERED", 1000)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """2,000 keys about 60 points."""
    at = torch.arange(2000) % 60
    return stored(tmp_path_factory.mktemp("store"), 2 * draw(60, WIDTH)[at] + draw(2000, WIDTH))


OPTIONS = {
    "ivf": SearchOptions(kind="ivf", lists=20, nprobe=4),
    "ivfpq": SearchOptions(kind="ivfpq", lists=20, nprobe=4, code_bytes=4),
    "hnsw": SearchOptions(kind="hnsw", m=8, ef=40),
}


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_looking_into_all_lists_is_looking_at_every_key(
    tmp_path: Path, dtype: str, distance: str
) -> None:
    pytest.importorskip("faiss")
    store = stored(tmp_path, draw(800, WIDTH), dtype)
    queries = draw(12, WIDTH, seed=4)
    every = build_index(store, SearchOptions(kind="exact", distance=distance), say=str)
    lists = SearchOptions(kind="ivf", lists=10, nprobe=10, distance=distance)
    found, expected = (
        build_index(store, lists, say=str).search(queries, 20),
        every.search(queries, 20),
    )
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.distances, expected.distances)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_lists_hold_keys_as_the_store_does(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("faiss")
    store = stored(tmp_path, 100 + draw(300, WIDTH), dtype)
    options = SearchOptions(kind="ivf", lists=7).resolved(300, WIDTH)
    made = approximate.build(store, options, np.arange(0))
    made.make_direct_map()
    held = torch.from_numpy(made.reconstruct_n(0, 300))
    assert torch.equal(held, store.key_tensor.float())


def overlap(found: Tensor, expected: Tensor) -> float:
    both = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(found, expected, strict=True)]
    return sum(both) / expected.numel()


def test_recall_rises_with_the_lists_that_are_looked_into(clustered: Store) -> None:
    pytest.importorskip("faiss")
    queries = draw(40, WIDTH, seed=4, dtype=torch.float32)
    true = every_distance(clustered.key_tensor, queries, "l2").topk(10, largest=False).indices
    index = build_index(clustered, OPTIONS["ivf"], say=str)
    recalls = [overlap(index.tuned(nprobe=n).search(queries, 10).rows, true) for n in range(1, 21)]
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.9 < recalls[10]
    assert recalls[-1] == 1


@with_faiss
@pytest.mark.parametrize("kind", KEPT)
def test_recall_is_measured_told_and_kept(clustered: Store, kind: str) -> None:
    said: list[str] = []
    index = build_index(clustered, OPTIONS[kind], k=20, say=said.append)
    assert list(index.recall) == [1, 10, 20]
    draw_rows = np.random.default_rng(0).choice(2000, 256, replace=False)
    queries = clustered.key_tensor[torch.from_numpy(np.sort(draw_rows))]
    true = (
        every_distance(clustered.key_tensor, queries, "l2").topk(21, largest=False).indices[:, 1:]
    )
    found = index.search(queries, 21).rows[:, 1:]
    assert index.recall[20] == pytest.approx(overlap(found, true), abs=0.002)
    assert index.recall[20] > 0.6
    assert len(said) == 1
    assert f"recall@20 {index.recall[20]:.3f} of the store's own keys (256 of them)" in said[0]
    again = open_index(clustered, say=said.append)
    assert (again.recall, again.options) == (index.recall, index.options)
    for one, other in zip(again.search(queries, 9), index.search(queries, 9), strict=True):
        assert torch.equal(one, other)
    assert len(said) == 1


def test_recall_leaves_out_the_key_itself_or_the_farthest_where_it_was_missed() -> None:
    distances = torch.tensor([[0.0, 1.0, 2.0], [0.5, 1.5, 2.5]])
    hits = exact.Hits(distances, torch.tensor([[7, 1, 2], [3, 4, 5]]))
    assert _others(hits, torch.tensor([7, 9])).tolist() == [[1.0, 2.0], [0.5, 1.5]]


def test_recall_does_not_count_the_key_itself(tmp_path: Path) -> None:
    """In a graph of one candidate keys find little but themselves."""
    pytest.importorskip("faiss")
    store = stored(tmp_path, draw(600, WIDTH))
    options = SearchOptions(kind="ivf", lists=15, nprobe=1, fetch=1.0)
    index = build_index(store, options, k=10, say=str)
    found = index.search(store.key_tensor, 1)
    assert (found.rows[:, 0] == torch.arange(600)).all()
    assert index.recall[1] < 0.95


@with_faiss
@pytest.mark.parametrize("kind", KEPT)
def test_distances_of_hits_are_exact_whatever_finds_them(clustered: Store, kind: str) -> None:
    queries = draw(10, WIDTH, seed=6)
    found = build_index(clustered, OPTIONS[kind], say=str).search(queries, 15)
    true = every_distance(clustered.key_tensor, queries, "l2").gather(-1, found.rows)
    close(found.distances.double(), true, 1e-5)
    assert torch.equal(found.distances, found.distances.sort(-1).values)


@with_faiss
@pytest.mark.parametrize("kind", KEPT)
def test_equal_seeds_build_equal_indexes(
    clustered: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several threads build a graph."""
    import faiss

    monkeypatch.setattr(exact, "BLOCK", 1000)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(4)
    made = []
    try:
        for seed in (0, 0, 1):
            build_index(clustered, dataclasses.replace(OPTIONS[kind], seed=seed), say=str)
            made.append((clustered.folder / "rows" / "index" / "index.faiss").read_bytes())
        assert faiss.omp_get_max_threads() == 4
    finally:
        faiss.omp_set_num_threads(threads)
    assert made[0] == made[1] != made[2]


def test_where_too_few_are_found_the_rest_is_minus_1(clustered: Store) -> None:
    pytest.importorskip("faiss")
    found = (
        build_index(clustered, OPTIONS["ivf"], say=str)
        .tuned(nprobe=1)
        .search(clustered.key_tensor[:3], 1000)
    )
    assert found.rows.shape == (3, 1000)
    assert torch.equal(found.rows == -1, found.distances == math.inf)
    assert (found.rows[:, -1] == -1).all()
    assert (found.rows[:, 0] >= 0).all()


@pytest.mark.parametrize(
    ("queries", "k", "error", "told"),
    [
        (
            torch.zeros(1, WIDTH),
            51,
            ConfigError,
            "k=51 neighbours .* has 50 keys: give k",
        ),
        (torch.zeros(1, WIDTH), 0, ConfigError, "k=0 neighbours"),
        (torch.zeros(1, 3), 1, ShapeError, r"shape \(N, 8\), not torch.float32 of \(1, 3\)"),
        (torch.zeros(WIDTH), 1, ShapeError, r"shape \(N, 8\), not torch.float32 of \(8,\)"),
        (torch.zeros(1, WIDTH).long(), 1, ShapeError, "floats of shape .* not torch.int64"),
        (torch.tensor([[0.0] * 8, [math.nan] * 8]), 1, DataError, "query 1 is not finite"),
    ],
)
def test_what_cannot_be_asked(
    tmp_path: Path, queries: Tensor, k: int, error: type[EveryformerError], told: str
) -> None:
    index = build_index(stored(tmp_path, draw(50, WIDTH)), say=str)
    with pytest.raises(error, match=told):
        index.search(queries, k)


@pytest.mark.parametrize(
    ("count", "width", "kind", "lists", "nprobe", "code_bytes"),
    [(200_000, 128, "exact", 1789, 27, 32), (200_001, 128, "ivf", 1789, 27, 32),
     (4_000_000, 128, "ivf", 8000, 125, 32), (4_000_001, 128, "ivfpq", 8000, 125, 32),
     (10**7, 128, "ivfpq", 12_649, 197, 32), (10**9, 1024, "ivfpq", 16_384, 256, 64),
     (1000, 6, "exact", 25, 8, 1), (1, 1, "exact", 1, 1, 1)],
)  # fmt: skip
def test_kind_and_numbers_follow_from_the_size(
    count: int, width: int, kind: str, lists: int, nprobe: int, code_bytes: int
) -> None:
    resolved = SearchOptions().resolved(count, width)
    assert (resolved.kind, resolved.lists, resolved.nprobe) == (kind, lists, nprobe)
    assert resolved.code_bytes == code_bytes


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        ({"kind": "ivf", "lists": 6}, 200, "lists=6 need 39 keys each .* 200: give at most 5"),
        ({"kind": "ivfpq", "code_bytes": 3}, 200, "code_bytes=3 does not divide the width 8"),
        ({"kind": "ivf"}, 38, "kind='ivf' learns from at least 39 keys, and there are 38: take"),
        ({"kind": "ivfpq"}, 77, "kind='ivfpq' learns from at least 78 keys, and there are 77"),
    ],
)
def test_options_that_do_not_fit_the_store(
    options: dict[str, Any], count: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchOptions(**options).resolved(count, WIDTH)


@pytest.mark.parametrize(
    ("kind", "count"),
    [("ivf", 39), ("ivf", 300), ("ivfpq", 78), ("ivfpq", 400), ("hnsw", 1), ("hnsw", 50)],
)
def test_stores_of_any_size_can_be_indexed(
    tmp_path: Path, kind: str, count: int, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faiss")
    store = stored(tmp_path, draw(count, WIDTH))
    index = build_index(store, SearchOptions(kind=kind), say=str)
    found = index.tuned(nprobe=10**6, ef=1000, fetch=1000.0).search(store.key_tensor, 1)
    assert torch.equal(found.rows[:, 0], torch.arange(count))
    assert "WARNING" not in "".join(capfd.readouterr())


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((10, "exact"), (1e9, "ivf"))
    monkeypatch.setattr("everyformer.datastores.store.options.BY_SIZE", sizes)


@pytest.mark.usefixtures("small_limit")
def test_without_faiss_every_key_is_looked_at_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    store = stored(tmp_path, draw(90, WIDTH))
    for begin in (build_index, open_index):
        said: list[str] = []
        assert begin(store, say=said.append).options.kind == "exact"
        assert "'ivf' needs the package 'faiss-cpu'" in said[0]
        assert said[0].endswith("; every key is looked at instead")
        for kind in KEPT:
            with pytest.raises(MissingExtraError, match=rf"'{kind}' needs .*everyformer\[knn\]"):
                begin(store, SearchOptions(kind=kind), say=str)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("count", [10, 60])
def test_a_large_store_without_an_index_says_so(tmp_path: Path, count: int) -> None:
    pytest.importorskip("faiss")
    said: list[str] = []
    assert open_index(stored(tmp_path, draw(count, WIDTH)), say=said.append).options.kind == "exact"
    assert len(said) == (count == 60)
    assert count == 10 or "looks at all 60 keys; an index 'ivf' is faster" in said[0]


SIZES = {"a": 300, "b": 100}


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    pytest.importorskip("faiss")
    build_index(write(tmp_path, SIZES), SearchOptions(kind="ivf", lists=5), say=str)
    return tmp_path


def other_rows(folder: Path) -> None:
    with Writer.append(folder, ORIGIN) as writer:
        writer.document("new")
        writer.add(draw(3, 6), torch.arange(3))
        writer.finish()


def flipped(folder: Path, name: str) -> None:
    path = folder / "rows" / "index" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (other_rows, {}, DataError, "is of other rows than the store .* has now: build"),
        (lambda f: flipped(f, "index.faiss"), {}, DamagedError, "index.faiss"),
        (lambda f: flipped(f, "index.json"), {}, DamagedError, "index.json"),
        (str, {"distance": "cosine"}, DataError, "is 'ivf' by l2, not '.*' by cosine"),
    ],
)
def test_an_index_that_does_not_serve_is_named_or_built_again(
    indexed: Path, change: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    change(indexed)
    store = Store.open(indexed)
    with pytest.raises(error, match=message):
        open_index(store, SearchOptions(**options), say=str)
    said: list[str] = []
    again = open_index(store, SearchOptions(kind="ivf", lists=4, **options), say=said.append)
    assert said[0].endswith("; it is built again")
    assert again.recall
    assert open_index(store, SearchOptions(**options), say=str).options.lists == 4


def test_what_a_query_looks_at_is_changed_without_building(indexed: Path) -> None:
    tuned = open_index(Store.open(indexed), SearchOptions(kind="ivf", nprobe=3), say=str)
    assert (tuned.options.nprobe, tuned.options.lists, tuned.recall) == (3, 5, {})
    assert (
        open_index(Store.open(indexed), SearchOptions(kind="hnsw"), say=str).options.kind == "hnsw"
    )


def test_an_index_is_not_built_while_the_store_is_written(indexed: Path) -> None:
    store = Store.open(indexed)
    before = content(indexed / "rows" / "index")
    with (
        Writer.append(indexed, ORIGIN),
        pytest.raises(DataError, match="is being written by another process"),
    ):
        build_index(store, SearchOptions(kind="ivf", lists=3), say=str)
    assert content(indexed / "rows" / "index") == before


def test_an_index_that_the_disk_does_not_take_leaves_the_one_before(indexed: Path) -> None:
    store, before = Store.open(indexed), content(indexed)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    try:
        with pytest.raises(UnsavedError, match=r"cannot write .*index: faiss could not write its"):
            build_index(store, SearchOptions(kind="ivf", lists=3), say=str)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert content(indexed) == before


@with_faiss
@pytest.mark.parametrize("kind", KEPT)
def test_keys_are_read_in_blocks(
    clustered: Store, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approximate, "LEARNT_FROM", 1)
    monkeypatch.setattr(approximate, "CODES", 8)
    taken: list[int] = []
    real = approximate.compared

    def counted(keys: Tensor, *how: Any) -> Tensor:
        taken.append(len(keys))
        return real(keys, *how)

    for place in (approximate, exact):
        monkeypatch.setattr(place, "compared", counted)
    options = OPTIONS[kind].resolved(2000, WIDTH)
    made = approximate.build(clustered, options, np.arange(0))
    approximate.FaissSearch(clustered, options, made).search(torch.zeros(2, WIDTH), 3)
    assert sum(taken) > 2000
    assert max(taken) <= 39 * 8
