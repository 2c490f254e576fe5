"""Real processes: a comparison stopped or killed in the middle resumes with nothing lost."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from small_comparisons import SMALL, Compared

from everyformer.cli import main
from everyformer.lab.bench.points import Point
from everyformer.lab.compare import launchers
from everyformer.system.signals import GracefulStop

WORDS = ("gmlp", "aft-simple", *SMALL, "--training.checkpoint-every", "5", "--out", "made")
STEPS = ("--steps", "1000", "--training.evaluate-every", "none")


def compare_in(folder: str, words: tuple[str, ...]) -> None:
    os.chdir(folder)
    # a fork server that an earlier test started writes to that test's stderr
    with Path("told.txt").open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.exit(main(["compare", *words]))


@pytest.fixture(scope="module")
def start() -> Callable[..., ForkServerProcess]:
    """Start a comparison in a process of its own; torch is imported there already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["everyformer.lab.compare.compare", "everyformer.cli.compare"])

    def begin(folder: Path, *words: str) -> ForkServerProcess:
        child = context.Process(target=compare_in, args=(str(folder), words))
        child.start()
        return child

    return begin


def steps(folder: Path, member: str) -> int:
    """Of the newest row that the member's training has logged."""
    metrics = folder / "made" / "runs" / f"{member}-seed0" / "run" / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return max((row["step"] for row in rows), default=0)


def wait_for(holds: Callable[[], Any], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def workers(folder: Path) -> Iterator[int]:
    """Processes that train into ``folder``: they work there, each in a session of its own."""
    for number in (int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()):
        with contextlib.suppress(OSError):
            if os.getsid(number) == number and os.readlink(f"/proc/{number}/cwd") == str(folder):
                yield number


def test_a_stop_between_trainings_or_points_ends_what_remains(
    compare: Callable[..., Compared], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    number, code, run = signal.SIGINT, 130, launchers.launch

    def stopped(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        run(module, place, stop, *words)
        os.kill(os.getpid(), number)
        return 0

    def measured(*given: Any, **more: Any) -> list[Point]:
        os.kill(os.getpid(), number)
        pytest.fail("the measurement was not stopped")

    with monkeypatch.context() as patch:
        patch.setattr(launchers, "launch", stopped)
        done = compare("gmlp", "aft-simple", "--steps", "1")
    assert (done.code, launched) == (code, ["gmlp-seed0"])
    assert "continue with: everyformer compare --resume --out made" in done.err
    assert done.out == ""
    monkeypatch.setattr("everyformer.lab.compare.timing.bench_together", measured)
    assert compare("--resume", "--lengths", "8", "16", small=False).code == code
    monkeypatch.undo()
    assert launched == ["gmlp-seed0"]
    assert done.results["waiting"] == ["aft-simple"]


def test_a_stop_while_the_page_is_drawn_comes_at_once(
    compare: Callable[..., Compared], launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(*given: Any, complete: bool) -> None:
        if complete:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the page was drawn to its end")

    with monkeypatch.context() as patch:
        patch.setattr("everyformer.lab.report.comparison.write_report", drawn)
        done = compare("gmlp", "--steps", "1")
    assert done.code == 143
    assert "continue with: everyformer compare --resume --out made" in done.err
    assert done.err.splitlines()[-1] == "everyformer: stopped by SIGTERM"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
@pytest.mark.usefixtures("without_report")
@pytest.mark.full("three quarters of a minute", parts=3)
def test_stopped_and_killed_it_goes_on_where_it_was(
    start: Callable[..., ForkServerProcess],
    tree: Path,
    capfd: pytest.CaptureFixture[str],
    launched: list[str],
) -> None:
    reached = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        resumed = ("--resume", "--out", "made") if reached else (*WORDS, *STEPS)
        child = start(tree, *resumed)
        wait_for(lambda before=reached: steps(tree, "gmlp") > before + 20)
        os.kill(child.pid or 0, number)
        child.join(60)
        assert child.exitcode == code
        wait_for(lambda: not list(workers(tree)))
        told = (tree / "told.txt").read_text(encoding="utf-8")
        assert "Traceback" not in told
        if code > 0:
            assert "continue with: everyformer compare --resume --out made" in told
        if reached:
            assert f"going on from step {reached}" in told
        place = tree / "made" / "runs" / "gmlp-seed0"
        assert not (place / "result.json").exists()
        saved = sorted((place / "run" / "checkpoints").iterdir())[-1].name
        assert int(saved.rpartition("-")[2]) > reached
        reached = int(saved.rpartition("-")[2])
        assert reached < 1000

    # the rest in this process: nothing is lost, nothing done twice
    os.chdir(tree)
    assert main(["compare", "--resume", "--out", "made"]) == 0
    assert launched == ["gmlp-seed0", "aft-simple-seed0"]
    assert f"going on from step {reached}" in capfd.readouterr().err
    results = json.loads((tree / "made" / "results.json").read_text(encoding="utf-8"))
    for run in results["runs"]:
        assert run["steps"] == 1000
        assert [row["step"] for row in run["training"]] == [1, *range(10, 1001, 10)]
        assert all(row["tokens"] == 64 * row["step"] for row in run["training"])
