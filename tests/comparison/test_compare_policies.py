"""Comparisons of policies: equal steps of an environment, ranked by the return."""

import dataclasses
import json
from pathlib import Path

import pytest

from everyformer.cli import main
from everyformer.comparison.rounds import time_steps
from everyformer.core.config import from_dict
from everyformer.data import load_dataset
from everyformer.report.curves import draw_loss
from everyformer.report.selection import styles_of
from everyformer.training.rollouts import Rollouts
from everyformer.training.spec import RunSpec

WORDS = (
    *("--env", "everyformer/MemoryTrack-v0", "--env.steps", "9", "--env.number", "2"),
    *("--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--sequences", "3"),
    *("--model.policy.horizon", "8", "--model.policy.segment", "4", "--budget-tokens", "32"),
)


def test_policies_are_compared_at_equal_steps_of_the_environment(
    tree: Path, launched: list[str], without_report: None, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    names = ("gtrxl", "linear", "bert")
    code = main(["compare", *names, *WORDS, "--out", "both", "--lengths", "--json"])
    said = capsys.readouterr()
    assert code == 1, said.err
    found = json.loads(said.out)
    assert (found["metric"], found["better"]) == ("return", "higher")
    *good, failed = found["rows"]
    assert {row["member"] for row in good} == {"gtrxl", "linear"}
    assert good[0]["quality"] >= good[1]["quality"]
    assert "an encoder reads the whole text" in failed["error"]
    for run in found["runs"]:
        assert run["tokens"] == 32
        assert run["evaluations"][-1]["evaluation"]["return"] in {row["quality"] for row in good}
    drawing = draw_loss(found, styles_of(found), "tokens")
    assert drawing is not None
    assert drawing.title == "Return against steps of the environment"
    # speed is measured over whole turns, in which playing has its share
    saved = json.loads((tree / "both/runs/linear-seed0/run/config.json").read_text())
    turns: list[int] = []
    play = Rollouts._play
    monkeypatch.setattr(Rollouts, "_play", lambda own, *at: turns.append(at[1]) or play(own, *at))
    spec = from_dict(RunSpec, saved["run"])
    free = dataclasses.replace(spec.training, steps=1, budget_tokens=None)
    spec = dataclasses.replace(spec, training=free)
    time_steps(spec, load_dataset(spec.data, spec.task), 9)
    assert turns == [0, 1, 2]
