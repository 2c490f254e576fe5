"""The command line called in this process, on a corpus small enough to train on in milliseconds."""

import random
import shutil
from collections import defaultdict
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


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests stand, so that a run that was made for one is put back for another."""
    return tmp_path_factory.mktemp("tree")


@pytest.fixture
def tree(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with text.txt in it alone."""
    shutil.rmtree(place)
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(place / "cache"))
    (place / "text.txt").write_text(corpus(), encoding="utf-8")
    return place


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[object, Path]:
    """Copies of runs by their words and the files that they were made beside."""
    made = tmp_path_factory.mktemp("kept")
    return defaultdict(lambda: made / str(len([*made.iterdir()])))


@pytest.fixture
def trained(tree: Path, say: Callable[..., Given], kept: dict[object, Path]) -> Callable[..., Path]:
    """Train a member for three steps, or put back a run of the same, and give its directory."""

    def run(member: str = "gmlp", *words: str) -> Path:
        out = tree / "runs" / member
        beside = tuple((p.name, p.read_bytes()) for p in sorted(tree.rglob("*"))
                       if p.is_file() and {"cache", "runs"}.isdisjoint(p.parts))  # fmt: skip
        copy = None if "--out" in words else kept[member, words, beside]
        if copy is not None and copy.exists():
            shutil.copytree(copy, out)
            return out
        threads = ("--training.threads", "1")
        common = ("--data", "text.txt", "--steps", "3", "--out", str(out), *SIZES, *threads)
        code, _, err = say("train", member, *overridden(common, words))
        assert code == 0, err
        if copy is not None:
            shutil.copytree(out, copy)
        return out

    return run
