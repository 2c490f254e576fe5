"""The command line called in this process, on a corpus small enough to train on in milliseconds."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from everyformer.cli import main
from helpers import overridden

SIZES = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--batch", "4")
Given = tuple[int, str, str]
"""exit code, stdout, stderr"""


def corpus(words: int = 1500) -> str:
    drawn = random.Random(0).choices(
        ("a", "warm", "tree", "and", "the", "quick", "brown", "fox", "sleep"), k=words
    )
    return " ".join(drawn)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., Given]:
    """Run a command line; no traceback may ever show."""

    def run(*words: str) -> Given:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def refused(say: Callable[..., Given]) -> Callable[..., str]:
    """Run a command line that must be refused, and give its one sentence."""

    def run(*words: str, code: int = 2) -> str:
        given, out, err = say(*words)
        assert given == code, err
        assert out == ""
        last = err.strip().splitlines()[-1]
        assert last.startswith("everyformer: ")
        return last.removeprefix("everyformer: ")

    return run


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with text.txt in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(corpus(), encoding="utf-8")
    return tmp_path


@pytest.fixture
def trained(tree: Path, say: Callable[..., Given]) -> Callable[..., Path]:
    """Train a member for three steps and give the run's directory."""

    def run(member: str = "gmlp", *words: str) -> Path:
        out = tree / "runs" / member
        threads = ("--training.threads", "1")
        common = ("--data", "text.txt", "--steps", "3", "--out", str(out), *SIZES, *threads)
        code, _, err = say("train", member, *overridden(common, words))
        assert code == 0, err
        return out

    return run
