"""Every member of every task is trained, measured and, where the task makes something, generates.

By the command line, at the smallest sizes, one run a member and task.
"""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from everyformer.core.tasks import ALL_TASKS, TASKS
from everyformer.family import list_members
from everyformer.rl import (
    EnvironmentConfig,
    collect,
    read_trajectories,
    recipe,
    write_trajectories,
)
from helpers import every_one

Say = Callable[..., tuple[int, str, str]]

TEXT = ("--data", "text.txt", "--tokenizer", "chars", "--length", "16")
TRACK = ("--env", "everyformer/MemoryTrack-v0", "--env.number", "2")
DATA = {
    "lm": TEXT,
    "mlm": TEXT,
    "classify-text": ("--data", "labelled.csv", "--length", "16"),
    "classify-image": ("--data", "pictures", "--model.patch", "2"),
    "seq2seq": ("--data", "pairs", "--tokenizer", "chars", "--length", "16"),
    "pixels": ("--data", "pictures"),
    "super-resolution": (
        *("--data", "pictures", "--data.small", "2", "--data.validation", "0.34"),
    ),
    "classify-series": ("--data", "waves", "--length", "16"),
    "regress-text": ("--data", "numbers.csv", "--length", "16"),
    "regress-image": ("--data", "numbers.npz", "--model.patch", "2"),
    "regress-series": ("--data", "waves", "--length", "16"),
    "decision": ("--data", "paths", "--data.context", "4"),
    "policy": (*TRACK, "--model.policy.horizon", "16", "--model.policy.segment", "8"),
}
SIZES = (
    *("--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "2"),
    *("--training.threads", "1", "--training.evaluate-sequences", "2"),
)
CASES = [(task, member.name) for task in ALL_TASKS for member in list_members(task=task)]
PAIRED = pytest.mark.full("the task and the member are each tried in another pair")
SIDE = 64
"""pixels that a picture of 4x4 is shown in; two lie between pictures"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, labelled texts, pairs of sentences, pictures of 4x4 in two classes, and episodes."""
    place, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    words = [draw.choice(("warm", "tree", "fox", "and", "quick")) for _ in range(300)]
    (place / "text.txt").write_text(" ".join(words), encoding="utf-8")
    rows = [f"{' '.join(words[n : n + 2])},{n % 2}" for n in range(40)]
    (place / "labelled.csv").write_text("\n".join(("text,label", *rows)), encoding="utf-8")
    rows = [f"{' '.join(words[n : n + 2])},{n / 4}" for n in range(40)]
    (place / "numbers.csv").write_text("\n".join(("text,price", *rows)), encoding="utf-8")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    np.savez(place / "numbers.npz", images=pixels, y=pixels.mean((1, 2)))
    (place / "pairs").mkdir()
    for part, count in (("train", 24), ("val", 4)):
        for language, made in (("en", words[:count]), ("de", [w[::-1] for w in words[:count]])):
            file = place / "pairs" / f"{part}.{language}"
            file.write_text("\n".join(made) + "\n", encoding="utf-8")
    drawn = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 4), dtype=np.uint8)
    for name, held in zip(("cat", "dog"), drawn, strict=True):
        (place / "pictures" / name).mkdir(parents=True)
        for n, picture in enumerate(held):
            Image.fromarray(picture).save(place / "pictures" / name / f"{n}.png")
    walks = EnvironmentConfig("everyformer/GraphPath-v0", (), {"nodes": 5, "edges": 6, "steps": 6})
    write_trajectories(collect(walks, recipe("random", walks), 6), place / "paths")
    return place


@pytest.mark.parametrize(
    ("task", "member"),
    [pair if pair in every_one(CASES) else pytest.param(*pair, marks=PAIRED) for pair in CASES],
)
def test_a_member_trains_is_measured_and_generates(
    task: str, member: str, data: Path, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(data / "cache"))
    run = str(tmp_path / "run")
    code, out, err = say("train", member, "--task", task, *DATA[task], *SIZES, "--out", run)
    assert code == 0, err
    assert "2 steps" in out
    drawn = "--episodes" if TASKS[task].interacts else "--sequences"
    code, out, err = say("eval", run, "--json", drawn, "2")
    assert code == 0, err
    found = json.loads(out)["evaluation"]
    assert math.isfinite(found[0]["return"] if TASKS[task].interacts else found["loss"])
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
    sentence = f"the run in {run} has the task {task}: only lm, seq2seq, pixels, super-resolution"
    assert f"{sentence}, decision and policy runs generate" in err


def episodes(say: Say, run: str, task: str) -> None:
    """Three, in a folder, and a film of the first."""
    code, out, err = say("generate", run, "--episodes", "3")
    assert (code, out) == (0, f"{run}/episodes\n{run}/episodes.gif\n"), err
    assert len(read_trajectories(f"{run}/episodes")) == 3


WRITES: dict[str, Callable[[Say, str, str], None]] = {
    "lm": text,
    "seq2seq": translation,
    "pixels": pictures,
    "super-resolution": pictures,
    "decision": episodes,
    "policy": episodes,
}
