"""Real processes: Ctrl-C and SIGTERM end a program, and let work in steps finish its step."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everyformer.system.signals import GracefulStop, Stopped

HEAD = """
import pathlib, sys, time
from everyformer import cli
from everyformer.cli.verbs import doctor
from everyformer.system.files import file_written_whole

def ready(): print("ready", flush=True)
"""
TAIL = """
doctor.run = run
sys.argv = ["everyformer", "doctor"]
sys.exit(cli.main())
"""
LATEST = 60.0
"""seconds until a test gives up"""
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command line whose verb is the function `run` of a script, and wait until it says
    that it is ready."""
    begun: list[subprocess.Popen[str]] = []

    def begin(body: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", HEAD + body + TAIL],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        begun.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield begin
    for child in begun:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_signal_ends_a_program_which_lets_go_undisturbed(
    number: int, code: int, told: str, start: Start, tmp_path: Path
) -> None:
    child = start(
        "def run(words):\n"
        "    with file_written_whole(pathlib.Path('kept')) as path:\n"
        "        path.write_text('half')\n"
        "        try:\n"
        "            ready(); time.sleep(60)\n"
        "        finally:\n"
        "            ready(); time.sleep(0.3); print('let go', flush=True)\n"
    )
    child.send_signal(number)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for _ in range(3):
        child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LATEST)
    assert (child.returncode, out, err) == (code, "let go\n", f"everyformer: {told}\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_in_steps_is_asked_once_and_told(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with GracefulStop("stopping after this step") as stop:
        assert stop.received is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == number
    assert (
        capfd.readouterr().err == "\nstopping after this step; press Ctrl-C again to stop at once\n"
    )


def test_a_second_interrupt_stops_at_once_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with GracefulStop():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped) as caught:
            os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.number == signal.SIGINT
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_inner_of_two_works_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    with GracefulStop() as outer:
        with GracefulStop() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert (outer.received, inner.received) == (None, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert outer.received == signal.SIGINT


def test_another_thread_receives_nothing() -> None:
    found = []

    def work() -> None:
        with GracefulStop() as stop:
            found.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]


@pytest.mark.full("a process that imports torch")
def test_training_that_starts_up_ends(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a warm tree " * 200)
    words = ("train", "gmlp", "--data", "text.txt", "--steps", "100000", "--out", "run")
    child = subprocess.Popen(
        [sys.executable, "-m", "everyformer", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "EVERYFORMER_CACHE": str(tmp_path / "cache")},
    )
    maps = Path(f"/proc/{child.pid}/maps")
    # in the middle of importing torch
    while "libtorch_cpu" not in maps.read_text():
        assert child.poll() is None
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    told = child.communicate(timeout=LATEST)[1]
    assert child.returncode == 130
    assert told.splitlines()[-1] == "everyformer: interrupted"
