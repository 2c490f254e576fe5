"""Search in a store: `build_index` and `open_index` give an `Index`, whose `search` answers.

    index = build_index(store, SearchOptions(kind="ivf"), say=print)
    distances, rows = index.search(queries, k=32)

Kinds that may miss neighbours (`options.BUILT_ONCE`) are built once and saved with the store.
Their recall is measured when they are built: for keys of the store that nothing was learned from,
the share of the m nearest others that is found. A saved index is bound to the rows it was built of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from everyformer.core.config import from_dict
from everyformer.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MissingExtraError,
    ShapeError,
    unwritable,
)
from everyformer.datastores.store.approximate import FaissSearch, build
from everyformer.datastores.store.exact import ExactSearch, Hits, faiss_for
from everyformer.datastores.store.options import BUILT_ONCE, SearchOptions
from everyformer.datastores.store.record import INDEX, ROWS, lock
from everyformer.datastores.store.store import Store
from everyformer.system.files import written_whole
from everyformer.system.sealed import DamagedError, check_sums, checksums, read_json, write_json

FORMAT = "everyformer-index"
FACTS, FILE = "index.json", "index.faiss"
SAMPLE = 256
"""keys that recall is measured with"""
OF_RECALL = (1, 10)
"""numbers of neighbours that recall is measured for, besides k"""

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Index:
    """A search over the rows of a store."""

    store: Store
    options: SearchOptions
    """with the kind and the numbers that were chosen"""
    way: ExactSearch | FaissSearch = field(repr=False)
    recall: dict[int, float] = field(default_factory=dict)
    """by number of neighbours, as measured when it was built; empty: nothing can be missed"""

    @torch.no_grad()
    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest keys of every one of ``queries`` (N, width), floats on any device.

        Returns:
            distances (N, k) float32 and rows (N, k) int64 on the CPU, nearest first; equal
            distances are in no order. inf and -1 where fewer were found.

        Raises:
            ShapeError: another width, or no floats.
            ConfigError: k is below 1, or larger than the store.
            DataError: a query is not finite.
        """
        width = self.store.width
        if queries.ndim != 2 or queries.shape[1] != width or not queries.is_floating_point():
            raise ShapeError(
                f"queries must be floats of shape (N, {width}), not {queries.dtype} of "
                f"{tuple(queries.shape)}"
            )
        if not 1 <= k <= len(self.store):
            raise ConfigError(
                f"k={k:,} neighbours are asked of a store that has {len(self.store):,} keys: give "
                "k from 1 up to that"
            )
        vectors = queries.detach().to("cpu", torch.float32)
        if not vectors.isfinite().all():
            row = int((~vectors.isfinite()).any(-1).int().argmax())
            raise DataError(f"query {row:,} is not finite: look at the model that computes it")
        if not len(vectors):
            return Hits(torch.empty(0, k), torch.empty(0, k, dtype=torch.long))
        return self.way.search(vectors, k)

    def tuned(self, **changed: float) -> Index:
        """An index with another `nprobe`, `ef` or `fetch`; its recall is not known."""
        options = replace(self.options, **changed)  # type: ignore[arg-type]
        if not isinstance(self.way, FaissSearch) or options == self.options:
            return self
        return Index(self.store, options, self.way.with_options(options))

    def describe(self) -> str:
        """One line: kind, distance and measured recall."""
        options = self.options
        settings = {
            "exact": "every key is looked at",
            "hnsw": f"m={options.m}, ef={options.ef}",
        }.get(options.kind, f"{options.lists:,} lists, nprobe={options.nprobe}")
        if options.kind == "ivfpq":
            settings += f", code_bytes={options.code_bytes}"
        measured = ", ".join(f"recall@{m:,} {share:.3f}" for m, share in self.recall.items())
        measured = f"; {measured} of the store's own keys" if measured else ""
        return f"{options.kind} ({options.distance}): {settings}{measured}"


def build_index(
    store: Store, options: SearchOptions | None = None, *, k: int = 100, say: Say
) -> Index:
    """An index of ``store``, kept in it if its kind is one that is; its recall is measured.

    Args:
        k: neighbours that recall is measured for, besides 1 and 10.
        say: is told what is chosen for want of faiss, and the recall.

    Raises:
        ConfigError: options that do not fit the store.
        MissingExtraError: the kind needs faiss, which is not installed.
        DataError: another process writes into the store, or has changed it.
        UnsavedError: it cannot be kept; an index that was there before still is.
    """
    resolved = _chosen(store, options or SearchOptions(), say)
    if resolved.kind not in BUILT_ONCE:
        return Index(store, resolved, ExactSearch(store.key_tensor, resolved.distance))
    draw = np.random.default_rng(resolved.seed)
    # rows that recall is measured with
    apart = np.sort(draw.choice(len(store), min(SAMPLE, -(-len(store) // 4)), replace=False))
    built = build(store, resolved, apart)
    way = FaissSearch(store, resolved, built)
    recall = _recall(store, resolved, way, apart, k)
    index = Index(store, resolved, way, recall)
    say(f"{index.describe()} ({len(apart):,} of them)")
    with lock(store.folder):
        if Store.open(store.folder, verify=False).record.state != store.record.state:
            raise DataError(
                f"the store {store.folder} was changed while its index was built: build it again"
            )
        with written_whole(_place(store)) as new:
            try:
                faiss_for(resolved.kind).write_index(built, str(new / FILE))
            except RuntimeError as error:  # of faiss, whatever the system told it
                refusal = OSError(None, "faiss could not write its file, as on a full disk")
                raise unwritable(_place(store), refusal) from error
            facts = {
                "format": FORMAT,
                "state": store.record.state,
                "options": asdict(resolved),
                "recall": [[m, share] for m, share in recall.items()],
                "sums": checksums(new),
            }
            write_json(new / FACTS, facts)
    return index


def open_index(store: Store, options: SearchOptions | None = None, *, say: Say) -> Index:
    """The index that is kept, or one for which nothing needs to be.

    Args:
        options: a kind that is kept is built where it is missing, damaged, of other rows or of
            another distance; `nprobe`, `ef` and `fetch` hold if they are given. "auto" takes
            whatever is kept, and where there is nothing, or no faiss to read it with, looks at
            every key, and says so.

    Raises:
        MissingExtraError: the kind needs faiss, which is not installed.
        DataError: "auto", and what is kept is of other rows or of another distance.
        DamagedError: "auto", and what is kept is not as it was written.
    """
    options = options or SearchOptions()
    place = _place(store)
    if options.kind == "exact":
        return build_index(store, options, say=say)
    if (place / FACTS).exists():
        try:
            return _built(store, options, place)
        except MissingExtraError as error:
            if options.kind != "auto":
                raise
            say(f"{error}; every key is looked at instead")
            return build_index(store, replace(options, kind="exact"), say=say)
        except (DataError, CheckpointError) as error:
            if options.kind == "auto":
                raise
            say(f"{error}; it is built again")
    if options.kind != "auto":
        return build_index(store, options, say=say)
    resolved = _chosen(store, options, say)
    if resolved.kind in BUILT_ONCE:
        say(
            f"no index is in {place}, so each query looks at all {len(store):,} keys; an index "
            f"'{resolved.kind}' is faster"
        )
    return build_index(store, replace(options, kind="exact"), say=say)


def _built(store: Store, options: SearchOptions, place: Path) -> Index:
    facts = read_json(place / FACTS, FORMAT)
    stored = from_dict(SearchOptions, facts["options"])
    if facts["state"] != store.record.state:
        raise DataError(
            f"the index in {place} is of other rows than the store {store.folder} has now: build "
            "it again"
        )
    if options.kind not in ("auto", stored.kind) or options.distance != stored.distance:
        raise DataError(
            f"the index in {place} is '{stored.kind}' by {stored.distance}, not '{options.kind}' "
            f"by {options.distance}: build it again"
        )
    check_sums(place, facts["sums"])
    try:
        built = faiss_for(stored.kind).read_index(str(place / FILE))
    except RuntimeError as error:
        raise DamagedError(
            f"{place / FILE} cannot be read by the faiss that is installed: build it again"
        ) from error
    recall = {int(m): share for m, share in facts["recall"]}
    index = Index(store, stored, FaissSearch(store, stored, built), recall)
    tuning = {name: getattr(options, name) for name in ("nprobe", "ef", "fetch")}
    plain = SearchOptions()
    return index.tuned(**{n: v for n, v in tuning.items() if v != getattr(plain, n)})


def _chosen(store: Store, options: SearchOptions, say: Say) -> SearchOptions:
    """The options with a kind that can be had."""
    resolved = options.resolved(len(store), store.width)
    if resolved.kind not in BUILT_ONCE:
        return resolved
    try:
        faiss_for(resolved.kind)
    except MissingExtraError as error:
        if options.kind != "auto":
            raise
        say(f"{error}; every key is looked at instead")
        return replace(options, kind="exact").resolved(len(store), store.width)
    return resolved


def _place(store: Store) -> Path:
    return store.folder / ROWS / INDEX


def _recall(
    store: Store, options: SearchOptions, way: FaissSearch, apart: np.ndarray, k: int
) -> dict[int, float]:
    """The share of the m nearest others of the rows ``apart`` that ``way`` finds, by m.

    What is no farther than the m-th nearest counts, whichever of equal keys it is.
    """
    k = min(k, len(store) - 1)
    if k < 1:
        return {}
    rows = torch.from_numpy(apart)
    queries = store.key_tensor[rows].float()
    true, near = (
        _others(search.search(queries, k + 1), rows)
        for search in (ExactSearch(store.key_tensor, options.distance), way)
    )
    shares = {}
    for m in sorted({min(m, k) for m in (*OF_RECALL, k)}):
        hit = near[:, :m] <= true[:, m - 1 : m] * (1 + 1e-6)
        shares[m] = hit.float().mean().item()
    return shares


def _others(hits: Hits, rows: Tensor) -> Tensor:
    """Distances (N, k) of the nearest of each row without itself."""
    distances = hits.distances.clone()
    # if it is not among them, the farthest is left out
    itself = hits.rows == rows[:, None]
    itself[~itself.any(-1), -1] = True
    return distances[~itself].view(len(rows), -1)
