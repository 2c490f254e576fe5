"""The table of all members at their defaults: it goes on where it stopped, and shows who lags."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everyformer.lab.experiments import defaults


def test_what_is_recorded_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(defaults.SETTINGS["classify-image"], steps=2, width=8)
    monkeypatch.setitem(defaults.SETTINGS, "classify-image", setting)
    monkeypatch.setattr(defaults, "LAGGING", 99.0)
    trained: list[tuple[str, int]] = []
    one = defaults.one

    def counted(task, setting, data, candidate, seed):
        trained.append((candidate.member, seed))
        if len(trained) == 3:
            raise SystemExit("stopped")
        return one(task, setting, data, candidate, seed)

    monkeypatch.setattr(defaults, "one", counted)
    members = {member.name for member in defaults.list_members(task="classify-image")}
    monkeypatch.setattr(
        defaults, "list_members",
        lambda task: [m for m in _listed(task=task) if m.name in ("attention", "vit", "routing")],
    )  # fmt: skip
    assert {"attention", "vit", "routing"} <= members
    with pytest.raises(SystemExit):
        defaults.work(tmp_path, ["classify-image"], 1)
    defaults.work(tmp_path, ["classify-image"], 2)
    assert [pair[1] for pair in trained] == [0] * 4 + [1] * 3
    rows = json.loads((tmp_path / "defaults.json").read_text())["rows"]
    assert len({(row["member"], row["seed"]) for row in rows}) == len(rows) == 6
    page = (tmp_path / "defaults.md").read_text()
    assert "| vit |" in page
    assert "pooling class" in page


def rows_of(members: dict[str, float], steps: int) -> list[dict[str, Any]]:
    return [
        {"task": "lm", "member": name, "seed": seed, "steps": steps, "loss": loss + 0.01 * seed,
         "changes": {}}
        for name, loss in members.items()
        for seed in (0, 1, 2)
    ]  # fmt: skip


def test_a_member_that_lags_is_marked() -> None:
    rows = rows_of({"a": 2.4, "b": 2.5, "c": 3.4}, 150)
    marked = [line for line in defaults.page(rows) if "(behind)" in line]
    assert len(marked) == 1
    assert marked[0].startswith("| c | 3.410")


def test_those_behind_and_the_one_in_the_middle_are_trained_longer() -> None:
    rows = rows_of({"a": 2.4, "b": 2.5, "c": 3.4}, 150)
    assert defaults.lagging(rows, "lm") == ["b", "c"]
    assert defaults.lagging(rows_of({"a": 2.4, "b": 2.5}, 150), "lm") == []
    rows += rows_of({"b": 2.0, "c": 2.1}, 600)
    assert defaults.lagging(rows, "lm") == ["b", "c"]
    lines = list(defaults.page(rows))
    assert lines.index("Those behind and the one in the middle, 4 times the steps:") > 0
    assert lines[-1].startswith("| c | 2.110 | 2.0")
    assert sum("(behind)" in line for line in lines) == 1


_listed = defaults.list_members
