"""Every member of every task is trained, measured and, where the task makes something, generates.

By the command line, at the smallest sizes, one run a member and task.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Say
from matplotlib.image import imread

from every_task import DATA, PAIRS, SIZES, write_data
from helpers import every_one

PAIRED = pytest.mark.full("the task and the member are each tried in another pair")
SIDE = 64
"""pixels that a picture of 4x4 is shown in; two lie between pictures"""


CHOSEN = every_one(PAIRS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    write_data(place)
    return place


@pytest.mark.full("many cases", parts=3)
@pytest.mark.parametrize(
    ("task", "member"),
    [pair if pair in CHOSEN else pytest.param(*pair, marks=PAIRED) for pair in PAIRS],
)
def test_a_member_trains_is_measured_and_generates(task, member, data, tmp_path, say, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(data / "cache"))
    run = str(tmp_path / "run")
    code, out, err = say("train", member, "--task", task, *DATA[task], *SIZES, "--out", run)
    assert code == 0, err
    assert "2 steps" in out
    code, out, err = say("eval", run, "--json", "--sequences", "2")
    assert code == 0, err
    assert math.isfinite(json.loads(out)["evaluation"]["loss"])
    WRITES.get(task, refused)(say, run, task)


def text(say: Say, run: str, task: str) -> None:
    """Five characters behind the prompt."""
    code, out, err = say("generate", run, "--prompt", "warm", "--tokens", "5")
    assert code == 0, err
    assert out[:4] == "warm"
    assert len(out) == 4 + 5 + len("\n")


def translation(say: Say, run: str, task: str) -> None:
    """A line for each sentence, of two characters more than it and its end at most."""
    words = ("--prompt", "tree", "--prompt", "fox", "--extra", "2", "--beam", "2")
    code, out, err = say("generate", run, *words)
    assert code == 0, err
    lines = out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == 2
    assert len(lines[0]) <= len("tree") + 1 + 2
    assert len(lines[1]) <= len("fox") + 1 + 2


def pictures(say: Say, run: str, task: str) -> None:
    """Two drawn beside each other; or one of several rows: the small, the drawn and the large."""
    columns, name = 2, "samples"
    words: tuple[str, ...] = ("--images", "2")
    if task == "super-resolution":
        words, columns, name = ("--images", "1", "--draws", "1"), 3, "enlarged"
    code, out, err = say("generate", run, *words)
    assert (code, out) == (0, f"{run}/{name}.png\n"), err
    assert imread(f"{run}/{name}.png").shape[:2] == (SIDE, columns * (SIDE + 2) - 2)


def refused(say: Say, run: str, task: str) -> None:
    code, out, err = say("generate", run)
    assert (code, out) == (2, "")
    sentence = f"the run in {run} has the task {task}: only lm, seq2seq, pixels and"
    assert f"{sentence} super-resolution runs generate" in err


WRITES: dict[str, Callable[[Say, str, str], None]] = {
    "lm": text,
    "seq2seq": translation,
    "pixels": pictures,
    "super-resolution": pictures,
}
