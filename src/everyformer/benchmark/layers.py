"""One layer of several members, in turn in one process: what is compared was measured together."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from everyformer.benchmark.measure import layer_config, outcome, pass_of
from everyformer.benchmark.points import Point, Setting
from everyformer.benchmark.turns import in_turn
from everyformer.models.layers import layer_in_words

Own = Mapping[str, dict[str, Any]]
"""mixer options by member"""


def measured(points: Sequence[Point], setting: Setting, options: Own) -> list[Point]:
    """``points`` of one length with their times and peaks.

    Members whose layers are the same function are measured once, so that they do not differ.
    """

    def of(point: Point) -> dict[str, Any]:
        return options.get(point.member, {})

    def words_of(point: Point) -> str:
        return layer_in_words(layer_config(point, setting, of(point)))

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
