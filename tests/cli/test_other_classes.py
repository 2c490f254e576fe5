"""A classifier is measured on data of its own classes alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

Say = Callable[..., tuple[int, str, str]]
SIZES = (
    *("--width", "8", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "2"),
    *("--batch", "4", "--training.threads", "1"),
)


def table(path: Path, classes: tuple[str, str]) -> str:
    rows = [f"words number {n},{classes[n % 2]}" for n in range(20)]
    path.write_text("\n".join(("text,label", *rows)), encoding="utf-8")
    return str(path)


def test_other_classes_of_equal_number_are_refused(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    run = str(tmp_path / "run")
    own, other = table(tmp_path / "a.csv", ("1", "5")), table(tmp_path / "b.csv", ("neg", "pos"))
    code, out, err = say("train", "attention", "--data", own, *SIZES, "--out", run)
    assert code == 0, err
    assert "everyformer predict" in out
    assert say("eval", run, "--data", own)[0] == 0
    code, _, err = say("eval", run, "--data", other)
    assert code == 2
    assert "b has the classes neg and pos, but the run in" in err
    assert "was trained with 1 and 5: give data with the same classes" in err
