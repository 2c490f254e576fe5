"""A system that refuses to write is told of in one sentence, whatever was to be written."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from commands import Refused

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import UnsavedError
from everyformer.generation.sampling import stream
from everyformer.generation.state_file import save_state
from everyformer.interop.export import export_program


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond ``most`` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def small_model() -> ef.Model:  # type: ignore[name-defined]
    return ef.create_model(
        "aft-simple", vocabulary=256, width=32, layers=1, heads=2, max_length=32
    ).eval()


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("list",), ("list", "--json")])
def test_an_output_that_is_full_is_one_sentence(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "everyformer", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("everyformer: cannot write the output: the disk is full")


def test_a_run_whose_output_is_full_is_kept(tree, monkeypatch, capsys):
    sizes = ("--width", "8", "--layers", "1", "--heads", "1", "--length", "8", "--batch", "2")
    with monkeypatch.context() as patch, Path("/dev/full").open("w") as full:
        patch.setattr(sys, "stdout", full)
        code = main(["train", "gmlp", "--data", "text.txt", "--steps", "1", "--out", "run", *sizes])
    err = capsys.readouterr().err
    assert code == 1
    assert err.splitlines()[-1].startswith("everyformer: cannot write the output: the disk is full")
    assert (tree / "run" / "checkpoints" / "step-00000001").is_dir()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "cannot write some/where: the disk is full"),
        (errno.EDQUOT, "cannot write some/where: Disk quota exceeded"),
        (errno.EROFS, "cannot write some/where: Read-only file system; choose another place"),
        (errno.EACCES, "the system refused some/where: Permission denied"),
        (errno.EMFILE, "the system refused some/where: Too many open files"),
    ],
)
def test_a_refusal_of_the_system_is_no_fault_of_ours(number, told, refused, monkeypatch):
    def run(words: list[str]) -> int:
        raise OSError(number, os.strerror(number), "some/where")

    monkeypatch.setattr("everyformer.cli.verbs.doctor.run", run)
    said = refused("doctor", code=1)
    assert told in said
    assert "fault of everyformer" not in said


@pytest.mark.parametrize("most", [100, 4000])
def test_a_state_that_does_not_fit_leaves_the_old_one(tmp_path: Path, most: int) -> None:
    model, file = small_model(), tmp_path / "state"
    drawn = stream(model, [1], tokens=3)
    token = list(drawn)[-1]
    save_state(file, drawn.state, token)
    old = file.read_bytes()
    with small_files(min(most, len(old) - 1)), pytest.raises(UnsavedError, match="cannot write"):
        save_state(file, drawn.state, token)
    assert os.listdir(tmp_path) == ["state"]
    assert file.read_bytes() == old


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("most", [0, 5000])
def test_a_program_that_does_not_fit_is_an_error_and_not_the_end(tmp_path: Path, most: int) -> None:
    with small_files(most), pytest.raises(UnsavedError, match=r"cannot write .*model\.pt2"):
        export_program(small_model(), tmp_path / "model.pt2")
    assert os.listdir(tmp_path) == []
    export_program(small_model(), tmp_path / "model.pt2")
    assert torch.export.load(tmp_path / "model.pt2") is not None


def test_an_experiment_tries_its_place_before_its_work(refused: Refused) -> None:
    told = refused("reproduce", "saturation", "--out", "/proc/everyformer")
    assert "cannot write into /proc/everyformer" in told
