"""The table of all members at their defaults: it goes on where it stopped, and shows who lags."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from everyformer.experiments import defaults


def test_what_is_recorded_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(defaults.SETTINGS["classify-image"], steps=2, width=8)
    monkeypatch.setitem(defaults.SETTINGS, "classify-image", setting)
    trained: list[tuple[str, int]] = []
    one = defaults.one

    def counted(task, setting, data, entrant, seed):
        trained.append((entrant.member, seed))
        if len(trained) == 3:
            raise SystemExit("stopped")
        return one(task, setting, data, entrant, seed)

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


def test_a_member_that_lags_is_marked() -> None:
    rows = [
        {"task": "lm", "member": name, "seed": seed, "loss": loss + 0.01 * seed, "changes": {}}
        for name, loss in (("a", 2.4), ("b", 2.5), ("c", 3.4))
        for seed in (0, 1, 2)
    ]
    marked = [line for line in defaults.page(rows) if "(behind)" in line]
    assert len(marked) == 1
    assert marked[0].startswith("| c | 3.410")


_listed = defaults.list_members
