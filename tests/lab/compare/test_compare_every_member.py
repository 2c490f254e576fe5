"""Every member of every task goes through a whole comparison, from the data to the page."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from small_comparisons import Compared
from torch import Tensor

from every_task import DATA, PAIRS, SIZES, write_data
from everyformer.cli import main
from everyformer.core.tasks import ALL_TASKS
from everyformer.lab.report import comparison as report
from everyformer.lab.report import learned
from everyformer.lab.show import pictures as pictures_of
from everyformer.models.base import Model
from helpers import every_one

STILL = ("order", "seed", "chosen", "projection", "new_sums", "new_counts")
"""buffers drawn once, or again after a thousand calls; and sums that an evaluation empties"""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures are made, and put down as an empty image: drawing a hundred takes minutes."""
    made: list[Figure] = []

    def undrawn(figure: Figure) -> str:
        made.append(figure)
        return '<svg viewBox="0 0 1 1"></svg>'

    monkeypatch.setattr(report, "svg_text", undrawn)
    monkeypatch.setattr(learned, "MOST", 1)
    monkeypatch.setattr(learned, "FEW", 1000)
    return made


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Of each member that the page looks into, the saved buffers that two steps of training have
    left as they were drawn, but for those of `STILL`."""
    found: dict[str, list[str]] = {}
    look = pictures_of.learned_pictures

    def watched(model: Model, inputs: Tensor, **rest: Any) -> dict[str, Figure]:
        trained, start = dict(model.named_buffers()), rest["start"].state_dict()
        moving = [n for n in trained if n in start and n.rsplit(".")[-1] not in STILL]
        found[model.config.member] = [n for n in moving if torch.equal(trained[n], start[n])]
        return look(model, inputs, **rest)

    monkeypatch.setattr(pictures_of, "learned_pictures", watched)
    return found


CHOSEN = every_one(PAIRS)
FEW = {task: [m for t, m in PAIRS if (t, m) in CHOSEN and t == task] for task in ALL_TASKS}
ALL = {task: [m for t, m in PAIRS if t == task] for task in ALL_TASKS}
WHOLE = pytest.mark.full("each member is compared in one of its tasks")


@pytest.mark.full("many cases", parts=3)
@pytest.mark.parametrize(
    ("task", "members"),
    [*FEW.items(), *(pytest.param(task, names, marks=WHOLE) for task, names in ALL.items())],
    ids=[*(f"{task}-few" for task in FEW), *ALL],
)
def test_members_of_a_task_are_compared_to_the_page(
    task: str,
    members: list[str],
    tree: Path,
    launched: list[str],
    undrawn: list[Figure],
    standing: dict[str, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_data(tree)
    words = ("compare", *members, "--task", task, *DATA[task], *SIZES, "--lengths", "--out", "made")
    code = main(list(words))
    said = capsys.readouterr()
    made = Compared(code, said.out, said.err, tree / "made")
    assert code == 0, said.err[-2000:]
    assert {row["member"] for row in made.results["rows"]} == set(members)
    for row in made.results["rows"]:
        assert row["status"] == "done", row
        assert math.isfinite(row["quality"])
    page = (made.folder / "report.html").read_text(encoding="utf-8")
    assert "could not be shown" not in page
    assert "no example could be read" not in page
    assert undrawn
    assert standing == {member: [] for member in members}
