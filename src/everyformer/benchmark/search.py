"""Searches of members that look up, and their peers, in turn in one process on the same keys.

`knn-lm` and `spalm`: the exact search of a datastore, whose peer is a flat index of faiss.
`memorizing`: the top-k of each head among the keys of its memory, whose peer is `torch.topk` of one
dense product.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.benchmark.measure import outcome
from everyformer.benchmark.points import Point, Setting
from everyformer.benchmark.turns import Call, in_turn
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.datastores.store.exact import ExactSearch, faiss_for
from everyformer.engines.content.nearest import nearest

SEARCHED: dict[str, tuple[str, ...]] = {
    "knn-lm": ("faiss flat",),
    "spalm": ("faiss flat",),
    "memorizing": ("torch.topk",),
}
"""member -> peers of its search"""
SEED = 0
"""of keys and queries"""


class Task(NamedTuple):
    """Keys and queries of a search."""

    keys: Tensor
    """(n, width), or of a memory (batch, heads, n, head_dim)"""
    queries: Tensor
    """(queries, width), or (batch, heads, queries, head_dim)"""
    neighbours: int
    """k"""


def measured(points: Sequence[Point], setting: Setting) -> list[Point]:
    """``points``, which differ in their source alone, with their times and peaks."""
    task = outcome(points[0], lambda: _task(points[0], setting))
    if isinstance(task, Point):
        return [replace(p, status=task.status, detail=task.detail) for p in points]
    return in_turn(points, setting, lambda point: _call(point, task))


def _task(point: Point, setting: Setting) -> Task:
    if point.member not in SEARCHED:
        names = "', '".join(SEARCHED)
        raise ConfigError(f"{point.member} looks nothing up: a search is of '{names}'")
    if setting.device != "cpu" or setting.precision != "float32":
        raise UnsupportedError(
            "searches are measured on the CPU in float32: leave out --device and --precision"
        )
    draw = torch.Generator().manual_seed(SEED)
    lead: tuple[int, ...] = ()
    width = setting.width
    if point.member == "memorizing":
        lead, width = (setting.batch, setting.heads), setting.width // setting.heads
    keys = torch.randn(*lead, point.length, width, generator=draw)
    queries = torch.randn(*lead, point.queries, width, generator=draw)
    if point.neighbours > point.length:
        raise ConfigError(
            f"{point.neighbours:,} neighbours are asked of {point.length:,} keys: give fewer "
            "--neighbours, or longer --search"
        )
    return Task(keys, queries, point.neighbours)


def _call(point: Point, task: Task) -> Call:
    keys, queries, k = task
    if point.source == "faiss flat":
        faiss = faiss_for("exact")
        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatL2(keys.shape[1])
        index.add(keys.numpy())
        return lambda: index.search(queries.numpy(), k)
    if point.source == "torch.topk":
        return lambda: (queries @ keys.mT).topk(k)
    if point.member != "memorizing":
        search = ExactSearch(keys, "l2")
        return lambda: search.search(queries, k)
    # all keys are visible, as to the queries of one segment
    places = torch.arange(keys.shape[-2])[None, None]
    first = torch.zeros(1, 1, queries.shape[-2], dtype=torch.long)
    within = (first, first + keys.shape[-2])
    return lambda: nearest(queries, keys, k, places=places, within=within)
