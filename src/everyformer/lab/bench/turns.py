"""Calls that take turns in one process, so that what else a machine does falls on all of them."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from everyformer.core.devices import synchronise
from everyformer.lab.bench.measure import (
    LEAST_SAMPLES,
    PATIENCE,
    Own,
    is_steady,
    layer_config,
    outcome,
    pass_of,
    peaks_of,
    with_peaks,
    with_times,
)
from everyformer.lab.bench.points import Point, Setting
from everyformer.models.layers import layer_in_words
from everyformer.system.allocator import keep_freed_memory

Call = Callable[[], Any]


def in_turn(
    points: Sequence[Point], setting: Setting, make: Callable[[Point], Call]
) -> list[Point]:
    """``points`` with the times of the calls that ``make`` gives for each, and their peaks.

    A call is called once before it is measured.
    """
    calls: dict[Point, Call] = {}
    result: dict[Point, Point] = {}
    for point in points:
        initial = outcome(point, lambda p=point: _first(make(p)))  # type: ignore[misc]
        if isinstance(initial, Point):
            result[point] = initial
        else:
            calls[point] = initial
    peaks = {point: peaks_of(call, setting.device) for point, call in calls.items()}
    keep_freed_memory()
    times: dict[Point, list[float]] = {point: [] for point in calls}
    start = time.perf_counter()
    for rounds in itertools.count(1):
        for point, call in calls.items():
            begin = time.perf_counter()
            call()
            synchronise(setting.device)
            times[point].append(time.perf_counter() - begin)
        spent = (time.perf_counter() - start) / max(1, len(calls))
        steady = all(map(is_steady, times.values())) and spent > setting.seconds
        if rounds >= LEAST_SAMPLES and (steady or spent > PATIENCE * setting.seconds):
            break
    for point in calls:
        timed = with_times(point, times[point], is_steady(times[point]))
        result[point] = with_peaks(timed, peaks[point])
    return [result[point] for point in points]


def _first(call: Call) -> Call:
    """``call``, called once: what is computed for the first alone is not counted."""
    call()
    return call


def layers_in_turn(points: Sequence[Point], setting: Setting, options: Own) -> list[Point]:
    """``points`` of one layer each at one length, with their times and peaks.

    Members whose layers are the same function are measured once, so that they do not differ.
    """

    def of(point: Point) -> dict[str, Any]:
        return options.get(point.member, {})

    def words_of(point: Point) -> str:
        return f"{point.source}: {layer_in_words(layer_config(point, setting, of(point)))}"

    words = {point: outcome(point, partial(words_of, point)) for point in points}
    first: dict[str, Point] = {}
    for point, text in words.items():
        if isinstance(text, str):
            first.setdefault(text, point)
    distinct = list(first.values())
    timed = in_turn(distinct, setting, lambda point: pass_of(point, setting, of(point)))
    known = dict(zip(first, timed, strict=True))
    return [
        dataclasses.replace(known[text], member=point.member) if isinstance(text, str) else text
        for point, text in words.items()
    ]
