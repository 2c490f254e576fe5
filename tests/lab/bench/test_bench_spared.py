"""What adaptive computation leaves is measured beside all of it, and is what was asked for."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.cli.verbs.bench import render
from everyformer.core.tally import tallied
from everyformer.lab.bench import spared
from everyformer.lab.bench.points import Point, Setting
from sequence_laws.flops import count_flops

SMALL = Setting(width=32, heads=2, batch=3, seconds=0.001, threads=1)
WORDS = ("--width", "16", "--heads", "2", "--seconds", "0.001", "--threads", "1")
WHOLE = {"universal": "all steps", "adaptive-span": "whole spans", "depth-adaptive": "all layers"}


def call(member: str, share: float, length: int = 24, source: str = "everyformer") -> Any:
    torch.manual_seed(1)
    point = Point(member, length, source, "share", share=share)
    return spared.CALLS[member](point, SMALL)


@pytest.mark.parametrize(
    ("member", "share", "length", "told"),
    [
        ("universal", 0.25, 24, "3.00 of 12 steps a token"),
        ("universal", 1.0, 24, "12.00 of 12 steps a token"),
        ("adaptive-span", 0.1, 40, "4 tokens of span"),
        ("depth-adaptive", 0.33, 5, "4 of 12 layers a token"),
        ("depth-adaptive", 1.0, 5, "12 of 12 layers a token"),
    ],
)
def test_the_share_that_was_asked_for_is_computed(
    member: str, share: float, length: int, told: str
) -> None:
    run, said = call(member, share, length)
    assert said == told
    with tallied() as counted:
        run()
    means = counted.means()
    if member == "adaptive-span":
        # the ramp of 32 keys lies behind a span
        assert means["mean_span"] == pytest.approx(share * length + 32, rel=1e-6)
    else:
        assert means["mean_depth"] == pytest.approx(float(told.split()[0]), abs=0.006)


@pytest.mark.full("models of three kinds, seconds")
@pytest.mark.parametrize(
    ("member", "length", "most"),
    [("universal", 12, 0.45), ("depth-adaptive", 12, 0.6), ("adaptive-span", 512, 0.75)],
)
def test_a_share_costs_less_than_all_and_all_as_much(member: str, length: int, most: float) -> None:
    costs = {
        (share, source): count_flops(call(member, share, length, source)[0])
        for share in (0.25, 1.0)
        for source in ("everyformer", WHOLE[member])
    }
    whole = costs[1.0, WHOLE[member]]
    assert costs[0.25, WHOLE[member]] == whole
    assert costs[0.25, "everyformer"] < most * whole
    assert costs[1.0, "everyformer"] == whole


def test_without_backward_no_gradient_is_made() -> None:
    points = Point("universal", 12, work="share", share=0.5)
    costs = [
        count_flops(spared.CALLS["universal"](points, dataclasses.replace(SMALL, backward=b))[0])
        for b in (True, False)
    ]
    assert costs[0] > 2 * costs[1]


@pytest.mark.full("seconds each; shares are measured in Python every time")
@pytest.mark.parametrize("member", sorted(WHOLE))
def test_the_command_line_measures_shares(member: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--lengths", "40", "--shares", "0.25", "--json")
    assert main(["bench", member, *WORDS, *words]) == 0
    out, err = capsys.readouterr()
    found = [(p["work"], p["source"], p["length"], p["share"], p["status"])
             for p in json.loads(out)]  # fmt: skip
    assert found == [("share", source, 40, 0.25, "ok") for source in ("everyformer", WHOLE[member])]
    assert f"{member} ({WHOLE[member]}), share 0.25 at 40: " in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rope", "--shares", "0.5"], "rope spares nothing by share: 'universal', 'adaptive-span'"),
        (["universal", "--shares", "0"], "must be above 0 and at most 1"),
        (["universal", "--shares", "1.5"], "must be above 0 and at most 1"),
        (["universal", "--shares", "0.5", "--lengths"], "nothing to measure"),
    ],
)
def test_what_has_no_share_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = () if "--lengths" in words else ("--lengths", "8")
    assert main(["bench", *words, *lengths, *WORDS]) == 2
    out, err = capsys.readouterr()
    assert told in " ".join((out + err).split())


def test_a_table_shows_what_is_left_and_its_ratio() -> None:
    points = [
        Point("universal", 8, source, "share", share=0.25, seconds=seconds, detail=detail)
        for source, seconds, detail in (("everyformer", 0.001, "3 of 12"), ("all steps", 0.004, ""))
    ]
    shown = [" ".join(line.split()) for line in render(points).splitlines()]
    assert shown[2].startswith("universal everyformer share 0.25 8 1.00")
    assert "0.25x" in shown[3]
    assert shown[-1] == "universal (everyformer) at 8: 3 of 12"
