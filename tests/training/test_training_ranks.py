"""Several processes of one run: whatever befalls one, every one ends, with one sentence."""

import os
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
from training_stand_ins import become_rank, free_port

from everyformer.cli import main
from everyformer.training.parallel import world
from everyformer.training.parallel.world import Launch, read_launch

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SIZES = ("--width", "8", "--layers", "1", "--heads", "1", "--length", "8", "--batch", "4")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a warm tree and a quick fox " * 40)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment and no number"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1'"),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0'"),
        ({"WORLD_SIZE": "\u0662"}, "no number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"RANK": ""}, "RANK is '' in the environment and no number"),
        ({"RANK": "1"}, "RANK=1, LOCAL_RANK=0, WORLD_SIZE=1"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2"),
        ({"WORLD_SIZE": "2"}, "says WORLD_SIZE=2 but nothing of RANK and MASTER_ADDR and MASTER_P"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "h"}, "but nothing of MASTER_PORT"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
    ],
)
def test_a_wrong_environment_is_refused_before_anything_is_read(
    given, told, tree, monkeypatch, capsys
):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "gmlp", "--data", "nowhere.txt", "--out", "run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
    assert not (tree / "run").exists()


def test_alone_and_in_a_world_the_place_is_known(tree, monkeypatch):
    assert read_launch() == Launch(0, 0, 1)
    for name, value in zip(NAMES, ("3", "1", "4", "host", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert read_launch() == Launch(3, 1, 4)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_without_the_others_it_ends(rank, tree, monkeypatch, capsys):
    port = free_port()
    for name, value in zip(NAMES, (rank, rank, "2", "127.0.0.1", port), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(world, "WAIT", timedelta(seconds=1))
    assert main(["train", "gmlp", "--data", "text.txt", "--out", "run", *SIZES]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"the 2 processes of this run did not all come together at 127.0.0.1:{port}" in told
    assert not (tree / "run").exists()


def as_rank(rank: int, port: str, tree: Path, words: tuple[str, ...]) -> None:
    """What torchrun sets, then `everyformer train`; runs in a child."""
    become_rank(rank, port)
    os.chdir(tree)
    os.environ["EVERYFORMER_CACHE"] = str(tree / "cache")
    with (tree / f"told-{rank}.txt").open("w") as file:
        os.dup2(file.fileno(), 2)
    common = ("--data", "text.txt", "--out", "run", "--training.device", "cpu", *SIZES)
    sys.exit(main(["train", "gmlp", *common, *words]))


def begin(children: ForkServerContext, tree: Path, *words: str) -> list[ForkServerProcess]:
    port = free_port()
    ranks = [children.Process(target=as_rank, args=(r, port, tree, words)) for r in (0, 1)]
    for process in ranks:
        process.start()
    return ranks


def ends(process: ForkServerProcess) -> int | None:
    process.join(60)
    if process.exitcode is None:
        process.kill()
        pytest.fail("it hangs")
    return process.exitcode


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("killed", [0, 1])
def test_when_one_is_killed_the_other_says_so(killed, children, tree):
    ranks = begin(children, tree, "--steps", "100000", "--training.evaluate-every", "none")
    metrics = tree / "run" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not metrics.exists() or metrics.stat().st_size < 300:
        assert time.monotonic() < end, (tree / "told-0.txt").read_text()
        assert all(process.is_alive() for process in ranks), (tree / "told-0.txt").read_text()
        time.sleep(0.02)
    ranks[killed].kill()
    assert ends(ranks[killed]) == -signal.SIGKILL
    assert ends(ranks[1 - killed]) == 1
    told = (tree / f"told-{1 - killed}.txt").read_text()
    assert told.splitlines()[-1].startswith(
        f"everyformer [process {2 - killed} of 2]: another process of this run has ended"
    )
    assert "gloo" not in told
    assert "Traceback" not in told


@pytest.mark.full("processes that import torch")
def test_a_folder_that_is_refused_ends_all(children: ForkServerContext, tree: Path) -> None:
    (tree / "run").mkdir()
    (tree / "run" / "results.txt").write_text("finished")
    ranks = begin(children, tree, "--steps", "3")
    assert [ends(process) for process in ranks] == [2, 1]
    told = [(tree / f"told-{rank}.txt").read_text().splitlines()[-1] for rank in (0, 1)]
    assert "run is not empty" in told[0]
    assert "another process of this run has ended" in told[1]
