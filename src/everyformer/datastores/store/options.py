"""Options of a search: its kind for how many keys, and its settings."""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from everyformer.core.bounds import Count, Seed, Several, Times
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.genes.retrieval import Kind

Distance = Literal["l2", "cosine"]

BY_SIZE: tuple[tuple[float, Kind], ...] = (
    (200_000, "exact"),
    (4_000_000, "ivf"),
    (math.inf, "ivfpq"),
)
"""what "auto" takes for up to so many keys: of width 128 a query of 200,000 costs a millisecond of
a core by exact search; 4,000,000 of float16 take 1 GB of memory in `ivf` and a third of that in
`ivfpq`"""
BUILT_ONCE: tuple[Kind, ...] = ("ivf", "ivfpq", "hnsw")
"""kinds of faiss that are built once and kept; they may miss neighbours"""
A_CENTROID = 39
"""keys that faiss wants at least for a centroid that is learned"""
LEARNT_FROM = 64
"""keys for a list that centroids are learned from, where there are so many"""


@dataclass(frozen=True)
class SearchOptions(Options):
    """The search for neighbours. None: what fits the number of keys, n."""

    kind: Kind = "auto"
    """exact: every key, by faiss where that is installed, else by torch; ivf: the keys of the lists
    whose centroids are nearest; ivfpq: the same with compressed keys; hnsw: a graph; auto: by n,
    exact up to 200,000, ivf up to 4,000,000, then ivfpq"""
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
        """Options with a kind and numbers for ``count`` keys of ``width`` numbers.

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
