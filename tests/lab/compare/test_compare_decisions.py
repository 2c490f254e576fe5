"""Comparisons of what acts: baselines at the same budget."""

import json
from pathlib import Path
from typing import Any

import pytest

from everyformer.cli import main
from everyformer.data.episodes.walks import GraphWalk
from everyformer.family import BASELINES, info, list_members
from everyformer.models.build import create_model
from everyformer.models.decision import StatesNetwork
from everyformer.training.spec import preset
from recorded import as_files

NAMES = ("decision-transformer", "bc", "percent-bc", "no-return")
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--steps", "4", "--batch", "4")


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
def test_baselines_have_the_same_data_budget_and_held_out_part(
    tree: Path, launched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    as_files(GraphWalk(nodes=5, edges=6, steps=6).record(30, 0), tree / "paths")
    words = ("compare", *NAMES, "--data", "paths", "--data.context", "4", *SIZES)
    assert main([*words, "--lengths", "--out", "made"]) == 0, capsys.readouterr().err
    results = json.loads((tree / "made" / "results.json").read_text(encoding="utf-8"))
    assert results["metric"] == "action_loss"
    rows = {row["member"]: row for row in results["rows"]}
    assert set(rows) == set(NAMES)
    assert {row["steps"] for row in rows.values()} == {4}
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
    assert "could not be shown" not in page
