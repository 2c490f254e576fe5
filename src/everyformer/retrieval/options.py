"""Which search is taken for how many keys, its settings, and how what is found is mixed in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, TypeVar

from everyformer.core.bounds import Count, Positive, Seed, Several, Share, Times, When, Whole
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError

Kind = Literal["auto", "exact", "flat", "ivf", "ivfpq", "hnsw"]
Distance = Literal["l2", "cosine"]
N = TypeVar("N", int, float)

BY_SIZE: tuple[tuple[float, Kind], ...] = (
    (200_000, "exact"),
    (4_000_000, "ivf"),
    (math.inf, "ivfpq"),
)
"""what "auto" takes for up to so many keys: of width 128 a query of 200,000 costs a millisecond of
a core by exact search; 4,000,000 of float16 take 1 GB of memory in `ivf` and a third of that in
`ivfpq`"""
IN_FAISS: tuple[Kind, ...] = ("flat", "ivf", "ivfpq", "hnsw")
KEPT: tuple[Kind, ...] = ("ivf", "ivfpq", "hnsw")
"""kinds that are built once and kept; they may miss neighbours"""
A_CENTROID = 39
"""keys that faiss wants at least for a centroid that is learned"""
K = 1024
"""neighbours of a token, as published"""
LEARNT_FROM = 64
"""keys for a list that centroids are learned from, where there are so many"""


@dataclass(frozen=True)
class SearchOptions(Options):
    """How neighbours are found. None: what fits the number of keys, n."""

    kind: Kind = "auto"
    """exact: every key, by faiss where that is installed, else by torch; flat: every key, by faiss;
    ivf: the keys of the lists whose centroids are nearest; ivfpq: the same
    with compressed keys; hnsw: a graph; auto: by n, exact up to 200,000, ivf up to 4,000,000, then
    ivfpq"""
    distance: Distance = "l2"
    """l2: squared Euclidean; cosine: 1 - cos, which is 1 for a vector of zeros"""
    lists: Count | None = None
    """ivf, ivfpq: 4 sqrt(n) up to 16,384, and no more than a 39th of the keys"""
    nprobe: Count | None = None
    """ivf, ivfpq: lists that a query looks into; a 64th of them, at least 8"""
    code_bytes: Count | None = None
    """ivfpq: parts of a key that are coded in a byte each; a divisor of the width, by default the
    largest up to 64 that leaves four numbers to a part"""
    m: Several = 32
    """hnsw: neighbours of a key in the graph"""
    ef_construction: Count = 100
    """hnsw: candidates while it is built"""
    ef: Count = 128
    """hnsw: candidates of a query, at least as many as are fetched"""
    fetch: Times | None = None
    """kinds that may miss neighbours: how many times k are looked at by their exact distances; 4 of
    compressed keys, else 1.25"""
    seed: Seed = 0
    """of the keys that centroids are learned from, and of those that recall is measured with"""

    def resolved(self, count: int, width: int) -> Self:
        """With a kind and numbers for ``count`` keys of ``width`` numbers.

        Raises:
            ConfigError: there are too few keys to learn from for this kind, or for so many lists;
                `code_bytes` does not divide the width.
        """
        kind = self.kind
        if kind == "auto":
            kind = next(kind for most, kind in BY_SIZE if count <= most)
        least = {"ivf": A_CENTROID, "ivfpq": 2 * A_CENTROID}.get(kind, 1)
        if count < least:
            raise ConfigError(
                f"kind='{kind}' learns from at least {least} keys, and there are {count:,}: take "
                "'exact'"
            )
        most = max(1, count // A_CENTROID)
        lists = self.lists or min(round(4 * math.sqrt(count)), 16_384, most)
        if lists > most and kind in ("ivf", "ivfpq"):
            raise ConfigError(
                f"lists={lists:,} need {A_CENTROID} keys each to learn from, and there are "
                f"{count:,}: give at most {most:,}"
            )
        divisors = [n for n in range(1, min(64, max(1, width // 4)) + 1) if width % n == 0]
        code_bytes = self.code_bytes or divisors[-1]
        if width % code_bytes and kind == "ivfpq":
            raise ConfigError(
                f"code_bytes={code_bytes} does not divide the width {width}: give a divisor"
            )
        nprobe = min(lists, self.nprobe or max(8, lists // 64))
        fetch = self.fetch or (4.0 if kind == "ivfpq" else 1.25)
        return replace(
            self, kind=kind, lists=lists, nprobe=nprobe, code_bytes=code_bytes, fetch=fetch
        )


@dataclass(frozen=True)
class KnnOptions(Options):
    """How a store is read."""

    k: Count | None = None
    """neighbours of a token (default: 1,024, or all of a store with fewer keys)"""
    weight: Share = 0.25
    """lambda: 0 leaves the store out, 1 the model, and then no token is possible that no neighbour
    has"""
    temperature: Positive = 1.0
    """T, by which distances are divided"""
    distance: Literal["squared", "root", "cosine"] = "squared"
    """d: the squared Euclidean distance, its root, or 1 - cos"""
    exclude_self: bool = False
    """text that is scored does not find its own rows in the store: those of documents that read as
    the scored window does, as far as both go"""
    exclude_near: Annotated[Whole, When("exclude_self", True)] = 0
    """with exclude_self: nor so many rows before and after its own"""

    def resolved(self, keys: int) -> Self:
        """With a k, for a store of so many ``keys``."""
        return replace(self, k=self.k or min(K, keys))


@dataclass(frozen=True)
class Grid(Options):
    """Ways to read a store that are tried, every one of k with every temperature and weight."""

    k: tuple[Count, ...] = ()
    """numbers of neighbours (default: 1, 4, 16, 64, 256 and 1,024, as far as the store has them)"""
    temperature: tuple[Positive, ...] = ()
    """temperatures (default: 0.1, 0.3, 1, 3, 10 and 30, with cosine a tenth of those)"""
    weight: tuple[Share, ...] = ()
    """lambdas, beside the one that is best for each k and temperature, which is always found and is
    at most n / (n + 1) of n tokens (default: 0 to 1 in steps of 0.05)"""

    def resolved(self, keys: int, distance: str) -> Self:
        """With numbers in order, each once, for a store of so many ``keys``."""
        temperatures = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
        if distance == "cosine":
            temperatures = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
        return replace(
            self,
            k=_ordered(self.k or (k for k in (1, 4, 16, 64, 256, 1024) if k <= keys)),
            temperature=_ordered(self.temperature or temperatures),
            weight=_ordered(self.weight or (n / 20 for n in range(21))),
        )


def _ordered(given: Iterable[N]) -> tuple[N, ...]:
    return tuple(sorted(set(given)))
