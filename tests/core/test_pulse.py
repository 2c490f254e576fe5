"""A program that works for long says so; one that talks does not."""

import os
import subprocess
import sys
import time
from multiprocessing.sharedctypes import RawValue

import pytest

from everyformer.system import pulse
from everyformer.system.machine import LoadMeter, running
from everyformer.system.pulse import Pulse, doing, said

LONGEST = pulse.SILENCE + 2 * pulse._LOOK


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "SILENCE", 0.08)
    monkeypatch.setattr(pulse, "_LOOK", 0.01)


def test_silence_is_broken_by_the_innermost_work(capfd: pytest.CaptureFixture[str]) -> None:
    with Pulse("the program"):
        time.sleep(0.3)
        with doing("reading"), doing("counting words"):
            time.sleep(0.3)
    lines = capfd.readouterr().err.splitlines()
    assert {line.partition(" (")[0] for line in lines} == {"the program", "counting words"}
    assert len(lines) >= 4


def test_who_speaks_is_not_interrupted(capfd: pytest.CaptureFixture[str]) -> None:
    with Pulse("the program"):
        for _ in range(15):
            said()
            time.sleep(0.02)
    assert capfd.readouterr().err == ""


def test_a_program_is_quiet_while_one_that_it_started_speaks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Pulse("the program") as program, program.lend() as shared:
        other = Pulse("the other", shared)
        for _ in range(15):
            other.rest()
            time.sleep(0.02)
    assert capfd.readouterr().err == ""


@pytest.mark.full("processes that import torch")
def test_silences_of_a_program_and_of_one_that_it_starts_are_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulse, "SILENCE", 0.5)
    with Pulse("the program") as program:
        with program.lend() as shared:
            time.sleep(0.3)
            with Pulse("the other", shared):
                time.sleep(0.3)
            assert capfd.readouterr().err == "the other\n"
            Pulse("the other", shared).rest()
            time.sleep(0.3)
        time.sleep(0.3)
    assert capfd.readouterr().err == "the program (1 s)\n"


def test_a_program_speaks_for_one_that_cannot(capfd: pytest.CaptureFixture[str]) -> None:
    with Pulse("the program") as program, program.lend():
        time.sleep(0.3)
    assert "the program\n" in capfd.readouterr().err


def test_without_a_pulse_nothing_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with doing("reading"):
        said()
        time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_the_silence_that_is_broken_lasts_less_than_five_seconds() -> None:
    assert LONGEST < 5


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


def test_the_end_of_a_process_is_no_word() -> None:
    spoken = RawValue("d", 1.0)
    with Pulse("a process", spoken):
        pass
    assert spoken.value == 1.0
