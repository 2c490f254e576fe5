"""Searches that are measured in turn with their peers, and every way to be refused."""

import dataclasses
import json
import os
import sys
from typing import Any

import pytest
import torch

from everyformer.benchmark import search as inside
from everyformer.benchmark.bench import measure_with_peers
from everyformer.benchmark.points import Point, Setting
from everyformer.cli import main
from everyformer.cli.verbs.bench import render

SMALL = Setting(width=16, heads=2, batch=3, seconds=0.001, threads=1)
WORDS = ("--lengths", "--width", "16", "--heads", "2", "--seconds", "0.001", "--threads", "1")


def asked(member: str, *sources: str, keys: int = 90, queries: int = 5, k: int = 7) -> list[Point]:
    given: dict[str, Any] = {"work": "search", "queries": queries, "neighbours": k}
    return [Point(member, keys, source, **given) for source in ("everyformer", *sources)]


@pytest.mark.parametrize(
    ("member", "peer"), [(member, peer) for member, (peer,) in sorted(inside.SEARCHED.items())]
)
def test_a_member_and_its_peer_find_the_same(member: str, peer: str) -> None:
    if peer == "faiss flat":
        pytest.importorskip("faiss")
    points = asked(member, peer)
    task = inside._task(points[0], SMALL)
    found = [inside._call(point, task)()[1] for point in points]
    ours, other = (torch.as_tensor(rows).long().sort(-1).values for rows in found)
    assert torch.equal(ours, other)
    lead = (3, 2, 5) if member == "memorizing" else (5,)
    assert ours.shape == (*lead, 7)


@pytest.mark.parametrize(
    ("member", "peer"), [(member, peer) for member, (peer,) in sorted(inside.SEARCHED.items())]
)
def test_calls_take_turns(member: str, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def call(point: Point, task: inside.Task) -> Any:
        return lambda: turns.append(point.source)

    monkeypatch.setattr(inside, "_call", call)
    ours, other = inside.measured(asked(member, peer), SMALL)
    assert (ours.source, other.source) == ("everyformer", peer)
    assert ours.samples == other.samples
    timed = turns[-2 * (ours.samples or 0) :]
    assert timed == ["everyformer", peer] * (len(timed) // 2)
    assert ours.seconds is not None
    assert ours.peak_bytes is None or ours.peak_bytes >= 0


def test_an_absent_faiss_names_its_extra_and_ours_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    ours, other = inside.measured(asked("knn-lm", "faiss flat"), SMALL)
    assert ours.status == "ok"
    assert other.status == "refused"
    assert "pip install 'everyformer[knn]'" in other.detail


@pytest.mark.parametrize(
    ("points", "setting", "told"),
    [
        (asked("aft-simple"), {}, "aft-simple looks nothing up: a search is of 'knn-lm'"),
        (asked("knn-lm", keys=3), {}, "7 neighbours are asked of 3 keys: give fewer --neighbours"),
        (asked("memorizing"), {"precision": "bfloat16"}, "leave out --device and --precision"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    points: list[Point], setting: dict[str, Any], told: str
) -> None:
    [point] = inside.measured(points, dataclasses.replace(SMALL, **setting))
    assert point.status == "refused"
    assert told in point.detail


def test_the_command_line_measures_searches(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--search", "64", "128", "--queries", "3", "--neighbours", "2", "--peers", "--json")
    code = main(["bench", "memorizing", *WORDS, *words])
    out, err = capsys.readouterr()
    found = [(p["work"], p["source"], p["length"], p["queries"], p["neighbours"], p["status"])
             for p in json.loads(out)]  # fmt: skip
    assert code == 0
    assert found == [
        ("search", source, keys, 3, 2, "ok")
        for keys in (64, 128)
        for source in ("everyformer", "torch.topk")
    ]
    assert "memorizing (torch.topk), search 3 x 2 at 64: " in err


def test_a_table_shows_the_ratio_of_a_search_to_its_peer() -> None:
    points = [
        Point("knn-lm", 100, source, "search", queries=q, neighbours=2, seconds=seconds)
        for q, both in ((1, (0.001, 0.002)), (4, (0.003, 0.002)))
        for source, seconds in zip(("everyformer", "faiss flat"), both, strict=True)
    ]
    shown = [" ".join(line.split()) for line in render(points).splitlines()]
    assert shown[2].startswith("knn-lm everyformer search 1 x 2 100 1.00")
    assert "0.50x" in shown[3]
    assert "1.50x" in shown[5]
    assert "search: queries x neighbours of each, among so many keys as the length says" in shown


def ends(*given: Any) -> None:
    os._exit(3)


def test_a_process_that_dies_leaves_a_point_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "measured", ends)
    points = measure_with_peers(asked("knn-lm")[0], SMALL, peers=True)
    assert [(p.source, p.status) for p in points] == [
        ("everyformer", "failed"),
        ("faiss flat", "failed"),
    ]
    assert len(measure_with_peers(asked("knn-lm")[0], SMALL, peers=False)) == 1
