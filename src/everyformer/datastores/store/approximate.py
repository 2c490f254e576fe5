"""Indexes of faiss that may miss neighbours: lists by centroid (ivf, ivfpq), a graph (hnsw).

Keys are read in blocks and never held as a whole but as faiss codes them: ivf and hnsw in the type
of the store, ivfpq in `code_bytes` bytes. For 10 million keys of width 128 in float16, and 12,649
lists, an index takes

    ivf      2.56 GB of keys + 0.08 GB of rows      = 2.7 GB
    ivfpq    0.32 GB of codes + 0.08 GB of rows + 0.41 GB of tables by centroid = 0.9 GB

and, before there are codes, 0.42 GB of keys to learn centroids from; beside it blocks of 34 MB.
Lists grow by doubling, so they may take up to twice that while they are filled. hnsw takes about
four times what its keys do.

Equal seeds give equal indexes, with any number of threads in faiss 1.15, which this is tested with.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.datastores.store.exact import Hits, blocks, compared, faiss_for, ranked
from everyformer.datastores.store.options import A_CENTROID, LEARNT_FROM, SearchOptions
from everyformer.datastores.store.store import Store

CODES = 256
"""centroids of a part of a key, where there are keys enough to learn them from"""


class FaissSearch:
    """Neighbours by an index of faiss, ranked by their exact distances to stored keys.

    Args:
        options: resolved (`SearchOptions.resolved`).
        index: of faiss.
    """

    def __init__(self, store: Store, options: SearchOptions, index: Any) -> None:
        self._faiss = faiss_for(options.kind)
        self._store, self._options, self._index = store, options, index
        self._keys = store.key_tensor

    def with_options(self, options: SearchOptions) -> FaissSearch:
        """A search of the same index with other options."""
        return FaissSearch(self._store, options, self._index)

    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest that are found of ``queries`` (N, width) float32."""
        options = self._options
        fetched = min(len(self._keys), math.ceil(k * (options.fetch or 1)))
        vectors = compared(queries, options.distance).numpy()
        _, rows = self._index.search(vectors, fetched, params=self._parameters(fetched))
        return ranked(self._keys, queries, torch.from_numpy(rows), k, options.distance)

    def _parameters(self, fetched: int) -> Any:
        options = self._options
        if options.kind == "hnsw":
            return self._faiss.SearchParametersHNSW(efSearch=max(options.ef, fetched))
        kind = "IVFPQSearchParameters" if options.kind == "ivfpq" else "SearchParametersIVF"
        return getattr(self._faiss, kind)(nprobe=options.nprobe)


def build(store: Store, options: SearchOptions, apart: np.ndarray) -> Any:
    """A filled index of faiss of the resolved kind; nothing is learned from the rows ``apart``."""
    faiss, keys = faiss_for(options.kind), store.key_tensor
    metric = faiss.METRIC_INNER_PRODUCT if options.distance == "cosine" else faiss.METRIC_L2
    coding = "SQfp16" if store.record.dtype == "float16" else "Flat"
    if options.kind == "hnsw":
        index = faiss.index_factory(store.width, f"HNSW{options.m},{coding}", metric)
        index.hnsw.efConstruction = options.ef_construction
        index.hnsw.rng = faiss.RandomGenerator(options.seed % 2**31)
        index.train(_sample(keys, options, apart, A_CENTROID))
    else:
        lists = options.lists or 1
        learnt = _sample(keys, options, apart, max(LEARNT_FROM * lists, A_CENTROID * CODES))
        if options.kind == "ivfpq":
            bits = min(8, max(1, (len(learnt) // A_CENTROID).bit_length() - 1))
            coding = f"PQ{options.code_bytes}x{bits}"
        index = faiss.index_factory(store.width, f"IVF{lists},{coding}", metric)
        index.cp.seed = options.seed % 2**31
        if options.kind == "ivfpq":
            # faiss clusters small parts slowly, and such need few keys and rounds
            index.pq.cp.max_points_per_centroid, index.pq.cp.niter = A_CENTROID, 10
        elif coding == "SQfp16":
            index.by_residual = False  # which float16 would round
        index.train(learnt)
    for _, block in blocks(keys, options.distance):
        index.add(block.numpy())
    return index


def _sample(keys: Tensor, options: SearchOptions, apart: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` keys, without those of ``apart`` where the others are enough."""
    draw = np.random.default_rng(options.seed + 1)
    left = np.setdiff1d(np.arange(len(keys)), apart)
    if len(left) < A_CENTROID * max(2, options.lists or 1):
        left = np.arange(len(keys))
    rows = np.sort(draw.choice(left, min(most, len(left)), replace=False))
    return compared(keys[torch.from_numpy(rows)], options.distance).numpy()
