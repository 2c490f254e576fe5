"""A program that works for long says so; a library call does not."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from everyformer.system import status as module
from everyformer.system.machine import LoadMeter, running
from everyformer.system.status import show, status


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "FIRST", 0.05)
    show()
    yield
    show(False)


def test_the_innermost_work_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with status("reading"), status("counting words"):
        time.sleep(0.4)
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3  # after 0.05, 0.15, 0.35 seconds
    assert {line.partition(" (")[0] for line in lines} == {"counting words"}


def test_the_work_around_is_told_once_the_inner_one_has_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with status("reading"):
        with status("counting words"):
            pass
        time.sleep(0.2)
    assert {line.partition(" (")[0] for line in capfd.readouterr().err.splitlines()} == {"reading"}


def test_short_work_and_library_calls_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with status("reading"):
        pass
    show(False)
    with status("reading"):
        time.sleep(0.2)
    assert capfd.readouterr().err == ""


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "10000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "None"),
        ({"KMP_BLOCKTIME": "1"}, "None"),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_user_has_chosen(
    given: dict[str, str], spins: str
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    code = (
        "import os, sys; from everyformer.cli import main; sys.argv = ['everyformer', 'list'];"
        "sys.stdout = open(os.devnull, 'w'); main();"
        "print(os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stderr.split() == [spins]


@pytest.mark.skipif(running() is None, reason="the system does not say")
def test_a_busy_process_is_load() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            with LoadMeter(0.02) as meter:
                time.sleep(0.6)
        finally:
            other.kill()
    assert meter.mean is not None
    assert meter.mean > 0.5
