"""Comparisons of what acts: baselines at the same budget, and what is reached beside the loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.cli import main
from everyformer.comparison.playing import mean_of
from everyformer.comparison.results import Played
from everyformer.family import BASELINES, info, list_members
from everyformer.models.build import create_model
from everyformer.models.decision import StatesNetwork
from everyformer.rl import EnvironmentConfig, collect, read_trajectories, recipe, write_trajectories
from everyformer.training.spec import preset

NAMES = ("decision-transformer", "bc", "percent-bc", "no-return")
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--steps", "4", "--batch", "4")
GRAPH = EnvironmentConfig("everyformer/GraphPath-v0", (), {"nodes": 5, "edges": 6, "steps": 6})


def test_baselines_are_rows_beside_the_family_and_differ_in_one_thing() -> None:
    assert [row.name for row in BASELINES] == list(NAMES[1:])
    assert {row.name for row in list_members()}.isdisjoint(NAMES[1:])
    shape = {"state": (3,), "actions": 2, "context": 4}
    made = {name: create_model(name, "decision", episodes=shape) for name in NAMES}
    assert [isinstance(made[name], StatesNetwork) for name in NAMES] == [False, True, True, False]
    assert made["bc"].config.decision == made["percent-bc"].config.decision
    own, other = (made[name].config.decision for name in ("decision-transformer", "no-return"))
    assert (own.return_to_go, other.return_to_go) == (True, False)
    assert {name: preset(name).data.best for name in NAMES} == dict.fromkeys(NAMES) | {
        "percent-bc": 0.1
    }
    assert {info(name).group for name in NAMES} == {"reinforcement learning"}


@pytest.mark.full("a quarter of a minute", parts=3)
def test_baselines_have_the_same_data_budget_and_held_out_part_and_play(
    tree: Path, launched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_trajectories(collect(GRAPH, recipe("random", GRAPH), 30), tree / "paths")
    words = ("compare", *NAMES, "--data", "paths", "--data.context", "4", *SIZES)
    assert main([*words, "--lengths", "--out", "made"]) == 0, capsys.readouterr().err
    results = json.loads((tree / "made" / "results.json").read_text(encoding="utf-8"))
    assert results["metric"] == "action_loss"
    rows = {row["member"]: row for row in results["rows"]}
    assert set(rows) == set(NAMES)
    best = read_trajectories("paths").statistics.return_max
    for name, row in rows.items():
        assert row["steps"] == 4
        reads = name == "decision-transformer"
        assert row["played"]["target"] == (best if reads else None)
        assert -6 <= row["played"]["return"] <= -1
    saved: dict[str, Any] = {
        name: json.loads((tree / f"made/runs/{name}-seed0/run/config.json").read_text())
        for name in NAMES
    }
    assert {n: s["run"]["data"]["best"] for n, s in saved.items()} == dict.fromkeys(NAMES) | {
        "percent-bc": 0.1
    }
    # the losses of all are of the same steps
    assert len({saved[name]["data"]["fingerprint"] for name in NAMES}) == 1
    scored = {run["evaluations"][-1]["evaluation"]["scored"] for run in results["runs"]}
    assert len(scored) == 1
    page = (tree / "made" / "report.html").read_text(encoding="utf-8")
    assert "mean return when the best of the data is asked for" in page
    assert "could not be shown" not in page
    assert "mean return" in capsys.readouterr().out


def test_without_a_known_environment_nothing_is_played(
    tree: Path, launched: list[str], without_report: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "bare").mkdir()
    for number, episode in enumerate(collect(GRAPH, recipe("random", GRAPH), 6).episodes):
        np.savez(tree / "bare" / f"{number}.npz", **episode.arrays())
    words = ("compare", "bc", "no-return", "--data", "bare", *SIZES, "--lengths", "--out", "made")
    assert main([*words]) == 0, capsys.readouterr().err
    results = json.loads((tree / "made" / "results.json").read_text(encoding="utf-8"))
    assert [row["played"] for row in results["rows"]] == [None, None]
    assert "mean return" not in capsys.readouterr().out


def test_the_return_of_several_seeds_has_the_interval_of_their_mean() -> None:
    one: list[Played] = [
        {"return": value, "interval": [0.0, 9.0], "target": 5.0} for value in (1.0, 2.0, 6.0)
    ]
    assert mean_of(one[:1]) == one[0]
    found = mean_of(one)
    half = 4.302653 * np.std([1, 2, 6], ddof=1) / 3**0.5
    assert (found["return"], found["target"]) == (3.0, 5.0)
    assert np.allclose(found["interval"], [3 - half, 3 + half])
