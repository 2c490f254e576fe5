"""Searches of what a member looks up in, and their peers, in turn in one process on the same keys.

`knn-lm` and `spalm`: the exact search of a datastore, whose peer is a flat index of faiss.
`memorizing`: the top-k of each head among the keys of its memory, whose peer is `torch.topk` of one
dense product.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.benchmark.measure import (
    LEAST_SAMPLES,
    PATIENCE,
    is_steady,
    limit_threads,
    outcome,
    peaks_of,
    with_peaks,
    with_times,
)
from everyformer.benchmark.points import Point, Setting
from everyformer.core.allocator import keep_freed_memory
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.engines.content.nearest import nearest
from everyformer.retrieval.approximate import faiss_for
from everyformer.retrieval.exact import ExactSearch

SEARCHED = {"knn-lm": "faiss flat", "spalm": "faiss flat", "memorizing": "torch.topk"}
"""member -> the peer of its search"""
SEED = 0
"""of keys and queries"""
Call = Callable[[], Any]


class Task(NamedTuple):
    """What is searched."""

    keys: Tensor
    """(n, width), or of a memory (batch, heads, n, head_dim)"""
    queries: Tensor
    """(queries, width), or (batch, heads, queries, head_dim)"""
    neighbours: int
    """k"""


def fill_search(send: Any, points: Sequence[Point], setting: Setting) -> None:
    """Measure ``points``, which differ in their source alone, and send all of them back."""
    limit_threads(setting)
    with contextlib.suppress(KeyboardInterrupt):
        send.send(measured(points, setting))
        send.close()


def measured(points: Sequence[Point], setting: Setting) -> list[Point]:
    """``points`` with their times, of calls that take turns, and their peaks."""
    task = outcome(points[0], lambda: _task(points[0], setting))
    if isinstance(task, Point):
        return [replace(p, status=task.status, detail=task.detail) for p in points]
    calls: dict[Point, Call] = {}
    found: dict[str, Point] = {}
    for point in points:
        begun = outcome(point, lambda p=point: _first(_call(p, task)))  # type: ignore[misc]
        if isinstance(begun, Point):
            found[point.source] = begun
        else:
            calls[point] = begun
    peaks = {point: peaks_of(call, setting.device) for point, call in calls.items()}
    keep_freed_memory()
    times: dict[Point, list[float]] = {point: [] for point in calls}
    start = time.perf_counter()
    for rounds in itertools.count(1):
        for point, call in calls.items():
            begin = time.perf_counter()
            call()
            times[point].append(time.perf_counter() - begin)
        spent = (time.perf_counter() - start) / max(1, len(calls))
        steady = all(map(is_steady, times.values())) and spent > setting.seconds
        if rounds >= LEAST_SAMPLES and (steady or spent > PATIENCE * setting.seconds):
            break
    for point in calls:
        timed = with_times(point, times[point], is_steady(times[point]))
        found[point.source] = with_peaks(timed, peaks[point])
    return [found[point.source] for point in points]


def _first(call: Call) -> Call:
    """``call``, called once: what is computed for the first search is not counted."""
    call()
    return call


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
        faiss = faiss_for("flat")
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
