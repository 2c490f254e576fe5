"""Every member of every task goes through a whole comparison, from the data to the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from small_comparisons import Compared

from everyformer.cli import main
from everyformer.core.sealed import read_json
from everyformer.family import ALL_TASKS, list_members
from everyformer.report import comparison as report
from everyformer.report import learned
from everyformer.report.learned import rebuilt
from everyformer.training.checkpoint import RUN_FORMAT, load_model

DATA = {
    "lm": ("--data", "text.txt", "--length", "16"),
    "mlm": ("--data", "text.txt", "--length", "16"),
    "classify-text": ("--data", "listops", "--length", "32", "--data.depth", "1"),
    "classify-image": ("--data", "digits", "--model.patch", "4"),
    "seq2seq": ("--data", "copy", "--length", "24", "--data.symbols", "4"),
    "pixels": ("--data", "digits", "--data.size", "4"),
    "super-resolution": ("--data", "digits", "--data.size", "4", "--data.small", "2"),
}
SIZES = (
    *("--bench-lengths", "--width", "8", "--layers", "1", "--heads", "2", "--batch", "2"),
    *("--steps", "2", "--training.threads", "1", "--training.evaluate-sequences", "2"),
)
STILL = ("order", "seed", "chosen", "projection", "new_sums", "new_counts")
"""buffers drawn once, or anew after a thousand calls; and sums that an evaluation empties"""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures are made, and put down as an empty image: drawing a hundred takes minutes."""
    made: list[Figure] = []
    monkeypatch.setattr(report, "save_figure", lambda figure, path: made.append(figure))
    monkeypatch.setattr(learned, "MOST", 1)
    monkeypatch.setattr(report, "inline_svg", lambda figure, name, caption: "<svg></svg>")
    return made


@pytest.mark.parametrize("task", ALL_TASKS)
def test_all_members_of_a_task_are_compared_to_the_page(
    task: str,
    tree: Path,
    launched: list[str],
    undrawn: list[Figure],
    capsys: pytest.CaptureFixture[str],
) -> None:
    members = [member.name for member in list_members(task=task)]
    words = ("compare", *members, "--task", task, *DATA[task], *SIZES, "--out", "made")
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
    for run in made.results["runs"]:
        assert not standing(made.folder / run["folder"] / "run"), run["member"]


def standing(run: Path) -> list[str]:
    """Buffers that two steps of training have left as they were drawn, but for those of `STILL`."""
    trained = dict(load_model(run).named_buffers())
    start = rebuilt(read_json(run / "config.json", RUN_FORMAT)).state_dict()
    moving = {n: t for n, t in trained.items() if n in start and n.rsplit(".")[-1] not in STILL}
    return [name for name, tensor in moving.items() if torch.equal(tensor, start[name])]
