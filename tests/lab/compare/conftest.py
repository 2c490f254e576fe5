"""Comparisons in seconds: trainings run in this process unless a test is about processes."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from small_comparisons import SMALL, Compared

from everyformer.cli import main
from everyformer.lab.compare import calibration, decoding, launchers, rounds, worker
from everyformer.system.signals import GracefulStop
from helpers import overridden

TIME_STEPS = rounds.time_steps


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with text.txt in it; nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    drawn = random.Random(0).choices(("a", "warm", "tree", "and", "the", "quick", "fox"), k=1500)
    (tmp_path / "text.txt").write_text(" ".join(drawn), encoding="utf-8")
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were started, by their folders' names; they run in this process."""
    names: list[str] = []

    def here(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        names.append(place.name)
        return worker.main(place, *words)

    monkeypatch.setattr(launchers, "launch", here)
    monkeypatch.setattr(calibration, "launch", lambda module, place, stop: rounds.main(place))
    monkeypatch.setattr(decoding, "CONTEXTS", (4, 8))
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    monkeypatch.setattr(rounds, "SHORTEST", 0.0)
    step = {"steps": 1, "seconds": 0.01, "cpu_seconds": 0.01, "tokens": 64, "flops": 1e6}
    monkeypatch.setattr(rounds, "time_steps", lambda run, dataset, steps: dict(step))
    return names


@pytest.fixture
def steps_timed(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are timed in truth: elsewhere each is said to take 0.01 s."""
    monkeypatch.setattr(rounds, "time_steps", TIME_STEPS)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take a second, and few tests are about them."""
    monkeypatch.setattr(
        "everyformer.lab.report.comparison.write_report", lambda *given, **how: None
    )


@pytest.fixture
def compare(
    tree: Path, launched: list[str], without_report: None, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Compared]:
    """Run `everyformer compare`."""

    def run(*words: str, out: str = "made", small: bool = True) -> Compared:
        capsys.readouterr()
        code = main(["compare", *overridden(SMALL if small else (), words), "--out", out])
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Compared(code, said.out, said.err, tree / out)

    return run
