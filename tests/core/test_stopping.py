"""Real processes: Ctrl-C and SIGTERM are answered at once, whatever the process is doing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HEAD = """
import hashlib, os, pathlib, signal, sys, time
from everyformer import cli
from everyformer.cli.verbs import doctor
from everyformer.system.files import file_written_whole
from everyformer.system.stopping import Gentle

def ready(): print("ready", flush=True)
def deaf(rounds=10**9):
    # in C, as a large product or a Rust tokenizer is: no handler of Python's runs meanwhile
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", rounds)
"""
TAIL = """
doctor.run = run
sys.argv = ["everyformer", "doctor"]
sys.exit(cli.main())
"""
LATEST = 20.0
"""seconds until a test gives up; a process left to itself would take 60 or never end"""

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


def ended(child: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Exit code and lines of stderr."""
    said = child.communicate(timeout=LATEST)[1]
    return child.returncode, said.splitlines()


BUSY = {
    "plain": "time.sleep(60)",
    "swallowed": """
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass""",
    "in C": "deaf()",
    "in a callback": """
    class Loses:
        def __del__(self):
            time.sleep(60)
    Loses()
    time.sleep(60)""",
}


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
@pytest.mark.parametrize("busy", BUSY)
def test_a_signal_ends_whatever_is_going_on(
    busy: str, number: int, code: int, told: str, start: Start
) -> None:
    child = start(f"def run(words):\n    ready()\n    {BUSY[busy].strip()}")
    child.send_signal(number)
    found, lines = ended(child)
    assert found == code
    assert lines[-1] == f"everyformer: {told}"
    assert len(lines) == 1 or busy == "in a callback"


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize("busy", ["plain", "swallowed", "in C"])
def test_several_signals_are_one_sentence_and_no_traceback(busy: str, start: Start) -> None:
    child = start(f"def run(words):\n    ready()\n    {BUSY[busy].strip()}")
    for _ in range(5):
        child.send_signal(signal.SIGINT)
        time.sleep(0.002)
    assert ended(child) == (130, ["everyformer: interrupted"])


def test_more_signals_do_not_disturb_what_lets_go(start: Start) -> None:
    child = start(
        "def run(words):\n"
        "    try:\n"
        "        ready(); time.sleep(60)\n"
        "    finally:\n"
        "        ready(); time.sleep(0.3); print('let go', flush=True)\n"
    )
    child.send_signal(signal.SIGINT)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LATEST)
    assert (child.returncode, out, err) == (130, "let go\n", "everyformer: interrupted\n")


def in_steps(step: str, before: str = "") -> str:
    return f"""
def run(words):
    with Gentle("stopping after this step") as stop:
        {before}
        while stop.received is None:
            {step}
    print("saved", flush=True)
    return 128 + stop.received
"""


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_work_in_steps_is_told_at_once_and_finishes_its_step(
    number: int, code: int, start: Start
) -> None:
    child = start(in_steps("ready(); deaf(3 * 10**6)"))
    begun = time.monotonic()
    child.send_signal(number)
    assert child.stderr is not None
    assert child.stderr.readline() == "\n"
    assert child.stderr.readline().startswith("stopping after this step; press Ctrl-C again")
    assert time.monotonic() - begun < 2
    out, err = child.communicate(timeout=LATEST)
    # on a crowded machine the step takes so long that the program says what it is at
    said = [line for line in err.splitlines() if " is at work (" not in line]
    assert (child.returncode, out, said) == (code, "saved\n", [])


def test_quick_steps_answer_once_and_end_by_themselves(start: Start) -> None:
    child = start(in_steps("pass", before="ready()"))
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=LATEST)
    assert (child.returncode, out) == (143, "saved\n")
    assert err.count("stopping after this step") == 1
    assert len(err.splitlines()) == 2


def test_a_second_interrupt_ends_a_step_that_is_in_c(start: Start) -> None:
    child = start(in_steps("ready(); deaf()"))
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    child.stderr.readline()
    child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert ended(child) == (130, ["everyformer: interrupted"])


@pytest.mark.full("processes that import torch")
def test_an_end_takes_children_and_unfinished_files_with_it(start: Start, tmp_path: Path) -> None:
    child = start(
        "import multiprocessing\n"
        "def run(words):\n"
        "    other = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "    other.start()\n"
        "    with file_written_whole(pathlib.Path('kept')) as path:\n"
        "        path.write_text('half')\n"
        "        ready(); print(other.pid, flush=True)\n"
        "        deaf()\n"
    )
    assert child.stdout is not None
    other = int(child.stdout.readline())
    child.send_signal(signal.SIGTERM)
    assert child.wait(LATEST) == 143
    assert os.listdir(tmp_path) == []
    end = time.monotonic() + LATEST
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the child lives on")


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
    code, lines = ended(child)
    assert code == 130
    assert lines[-1] == "everyformer: interrupted"
