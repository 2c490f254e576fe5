"""Searches of faiss: every key (flat), lists by nearest centroid (ivf, ivfpq), a graph (hnsw).

Keys are read in blocks and never held as a whole but as faiss codes them: ivf and hnsw in the type
of the store, ivfpq in `code_bytes` bytes. For 10 million keys of width 128 in float16, and 12,649
lists, building takes at its largest

    ivf      2.56 GB of keys + 0.08 GB of rows      = 2.7 GB
    ivfpq    0.32 GB of codes + 0.08 GB of rows + 0.41 GB of tables by centroid = 0.9 GB

and, before there are codes, 0.42 GB of keys to learn centroids from; beside it 0.08 GB of lists by
key and blocks of 34 MB. Lists are given their size before they are filled, since lists that grow
would take up to twice that. hnsw, which grows, takes about four times what its keys do.

Equal seeds give equal indexes, with any number of threads in faiss 1.15, which this is tested with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.retrieval.distances import Hits, normalised, ranked
from everyformer.retrieval.options import A_CENTROID, LEARNT_FROM, Distance, SearchOptions
from everyformer.retrieval.store import Store
from everyformer.system.extras import extra_module

BLOCK = 1 << 16
"""keys that are read at a time"""
CODES = 256
"""centroids of a part of a key, where there are keys enough to learn them from"""


def faiss_for(kind: str) -> Any:
    """The package.

    Raises:
        MissingExtraError: it is not installed.
    """
    return extra_module("faiss", "knn", f"searching with '{kind}'", package="faiss-cpu")


class FaissSearch:
    """Neighbours by an index of faiss, ranked by their exact distances to stored keys.

    Args:
        options: resolved (`SearchOptions.resolved`).
        index: of faiss; None: every key is looked at.
    """

    def __init__(self, store: Store, options: SearchOptions, index: Any) -> None:
        self._faiss = faiss_for(options.kind)
        self._store, self._options, self._index = store, options, index
        self._keys = store.key_tensor

    def with_options(self, options: SearchOptions) -> FaissSearch:
        """The same index, asked in another way."""
        return FaissSearch(self._store, options, self._index)

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest that are found of ``queries`` (N, width) float32."""
        distance = self._options.distance
        if self._index is None:
            fetched = min(len(self._keys), k + max(8, k // 16))
            rows = of_all(self._faiss, self._keys, queries, fetched, distance).rows
        else:
            asked = _vectors(queries, distance)
            fetched = min(len(self._keys), math.ceil(k * (self._options.fetch or 1)))
            _, found = self._index.search(asked, fetched, params=self._parameters(fetched))
            rows = torch.from_numpy(found)
        return ranked(self._keys, queries, rows, k, distance)

    def _parameters(self, fetched: int) -> Any:
        options = self._options
        if options.kind == "hnsw":
            return self._faiss.SearchParametersHNSW(efSearch=max(options.ef, fetched))
        kind = "IVFPQSearchParameters" if options.kind == "ivfpq" else "SearchParametersIVF"
        return getattr(self._faiss, kind)(nprobe=options.nprobe)


def of_all(faiss: Any, keys: Tensor, queries: Tensor, count: int, distance: Distance) -> Hits:
    """The ``count`` nearest of all ``keys`` (n, width) to ``queries`` (N, width) float32, by faiss.

    Distances are as it rounds them: of few queries from differences, of many from products. Keys
    that it can read as they lie are one block.
    """
    asked = _vectors(queries, distance)
    metric = faiss.METRIC_INNER_PRODUCT if distance == "cosine" else faiss.METRIC_L2
    largest = distance == "cosine"
    nothing = -math.inf if largest else math.inf
    size = len(keys) if as_it_lies(keys, distance) else BLOCK
    best: tuple[np.ndarray, np.ndarray] | None = None
    for first, block in _blocks(keys, distance, size):
        scores, rows = faiss.knn(asked, block, min(count, len(block)), metric=metric)
        rows += first
        if len(block) < count:
            missing = ((0, 0), (0, count - len(block)))
            scores = np.pad(scores, missing, constant_values=nothing)
            rows = np.pad(rows, missing, constant_values=-1)
        if best is not None:
            both = (np.stack(pair) for pair in zip(best, (scores, rows), strict=True))
            scores, rows = faiss.merge_knn_results(*both, keep_max=largest)
        best = scores, rows
    assert best is not None
    found = Hits(*map(torch.from_numpy, best))
    return found._replace(distances=1 - found.distances) if largest else found


def as_it_lies(keys: Tensor, distance: Distance) -> bool:
    """Whether faiss can read ``keys`` without a copy."""
    return distance == "l2" and keys.dtype == torch.float32


def build(store: Store, options: SearchOptions, apart: np.ndarray) -> Any:
    """A filled index of faiss of the resolved kind; nothing is learned from the rows ``apart``."""
    faiss = faiss_for(options.kind)
    keys, width = store.key_tensor, store.width
    metric = _metric(faiss, options)
    half = store.record.dtype == "float16"
    if options.kind == "hnsw":
        graph = (
            faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_fp16, options.m, metric)
            if half
            else faiss.IndexHNSWFlat(width, options.m, metric)
        )
        graph.hnsw.efConstruction = options.ef_construction
        graph.hnsw.rng = faiss.RandomGenerator(options.seed % 2**31)
        graph.train(_sample(keys, options, apart, A_CENTROID))
        for _, block in _blocks(keys, options.distance):
            graph.add(block)
        return graph
    lists = options.lists or 1
    flat = faiss.IndexFlatIP if options.distance == "cosine" else faiss.IndexFlatL2
    quantizer = flat(width)
    learnt = _sample(keys, options, apart, max(LEARNT_FROM * lists, A_CENTROID * CODES))
    if options.kind == "ivfpq":
        bits = min(8, max(1, (len(learnt) // A_CENTROID).bit_length() - 1))
        index = faiss.IndexIVFPQ(quantizer, width, lists, options.code_bytes, bits, metric)
        # faiss clusters small parts slowly, and such need few keys and rounds
        index.pq.cp.max_points_per_centroid, index.pq.cp.niter = A_CENTROID, 10
        index.pq.cp.seed = options.seed % 2**31
    elif half:
        # without residuals, which float16 would round
        fp16 = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(quantizer, width, lists, fp16, metric, False)
    else:
        index = faiss.IndexIVFFlat(quantizer, width, lists, metric)
    index.cp.seed = options.seed % 2**31
    index.train(learnt)
    del learnt
    _fill(faiss, index, quantizer, keys, options)
    return index


def _fill(faiss: Any, index: Any, quantizer: Any, keys: Tensor, options: SearchOptions) -> None:
    """Add all keys to lists that are given their sizes first."""
    lists = np.empty(len(keys), np.int64)
    for first, block in _blocks(keys, options.distance):
        lists[first : first + len(block)] = quantizer.search(block, 1)[1][:, 0]
    for number, size in enumerate(np.bincount(lists, minlength=index.nlist).tolist()):
        index.invlists.resize(number, size)
        index.invlists.resize(number, 0)
    for first, block in _blocks(keys, options.distance):
        rows = np.arange(first, first + len(block))
        given = np.ascontiguousarray(lists[first : first + len(block)])
        pointers = [faiss.swig_ptr(array) for array in (block, rows, given)]
        index.add_core(len(block), *pointers)
    index.ntotal = len(keys)


def read(path: Path, kind: str) -> Any:
    """An index of faiss that `write` wrote."""
    return faiss_for(kind).read_index(str(path))


def write(index: Any, path: Path, kind: str) -> None:
    """Into a path that a writer gave."""
    faiss_for(kind).write_index(index, str(path))


def _sample(keys: Tensor, options: SearchOptions, apart: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` keys, without those of ``apart`` where the others are enough."""
    draw = np.random.default_rng(options.seed + 1)
    left = np.setdiff1d(np.arange(len(keys)), apart)
    if len(left) < A_CENTROID * max(2, options.lists or 1):
        left = np.arange(len(keys))
    rows = np.sort(draw.choice(left, min(most, len(left)), replace=False))
    return _vectors(keys[torch.from_numpy(rows)], options.distance)


def _blocks(
    keys: Tensor, distance: Distance, size: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """First rows, and the keys from there on as faiss reads them, `BLOCK` or ``size`` at a time."""
    size = size or BLOCK
    for first in range(0, len(keys), size):
        yield first, _vectors(keys[first : first + size], distance)


def _vectors(keys: Tensor, distance: Distance) -> np.ndarray:
    vectors = keys.float()
    if distance == "cosine":
        vectors, _ = normalised(vectors)
    return vectors.contiguous().numpy()


def _metric(faiss: Any, options: SearchOptions) -> int:
    return faiss.METRIC_INNER_PRODUCT if options.distance == "cosine" else faiss.METRIC_L2
