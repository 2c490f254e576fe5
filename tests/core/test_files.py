"""Files are whole or not there, whatever befalls process or disk, and nobody writes otherwise."""

import ast
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import everyformer
from everyformer.core.errors import CheckpointError, UnsavedError
from everyformer.system.files import (
    file_written_whole,
    require_regular,
    sweep,
    write_text,
    written_whole,
)

SOURCE = Path(everyformer.__file__).parent


def killed(script: str, folder: Path) -> None:
    """Run ``script`` with `place`, the folder, in a process that kills itself."""
    head = (
        "import os, signal, sys, pathlib\n"
        "from everyformer.system.files import *\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "die = lambda *rest: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", head + script, str(folder)], check=False)
    assert done.returncode == -9


def test_a_kill_leaves_the_old_file_and_the_next_writer_sweeps(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("old")
    killed(
        "with file_written_whole(place / 'kept.txt') as path:\n    path.write_text('ne'); die()\n",
        tmp_path,
    )
    assert (tmp_path / "kept.txt").read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2
    write_text(tmp_path / "other.txt", "x")
    assert sorted(os.listdir(tmp_path)) == ["kept.txt", "other.txt"]


def test_a_kill_between_the_renames_loses_no_folder(tmp_path: Path) -> None:
    with written_whole(tmp_path / "model") as folder:
        (folder / "weights").write_text("old")
    killed(
        "pathlib.Path.replace = die\n"
        "with written_whole(place / 'model') as path:\n"
        "    (path / 'weights').write_text('new')\n",
        tmp_path,
    )
    assert not (tmp_path / "model").exists()
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_what_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    with file_written_whole(tmp_path / "a") as path:
        path.write_text("first")
        write_text(tmp_path / "b", "second")
        sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "first"


@pytest.mark.parametrize(
    ("number", "told", "code"),
    [
        (errno.ENOSPC, "the disk is full", 1),
        (errno.EDQUOT, "quota", 1),
        (errno.EROFS, "Read-only", 2),
        (errno.EACCES, "Permission denied", 2),
    ],
)
def test_a_refused_write_is_one_sentence_and_leaves_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: str, code: int
) -> None:
    (tmp_path / "kept").write_text("old")

    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UnsavedError, match=rf"cannot write .*kept: .*{told}") as caught:
        write_text(tmp_path / "kept", "new")
    monkeypatch.undo()
    assert caught.value.exit_code == code
    assert os.listdir(tmp_path) == ["kept"]
    assert (tmp_path / "kept").read_text() == "old"


def test_an_error_of_the_maker_passes_and_nothing_is_left(tmp_path: Path) -> None:
    def fail() -> None:
        with written_whole(tmp_path / "model") as folder:
            (folder / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_takes_the_content_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "through")
    reader.join(10)
    assert found == ["through"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_pipe_is_no_file_to_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe is no ordinary file"):
        require_regular(tmp_path / "pipe")
    require_regular(tmp_path / "nothing")


WRITERS = {"write_bytes", "savefig", "imsave", "tofile", "save_file", "dump"}
SAVES = {"np.save", "np.savez", "torch.save", "torch.export.save"}
ALLOWED = {
    "system/files.py": "the one way",
    "training/storage.py:write_tensors": "into a path that a writer gave",
    "training/logging.py:__init__": "appends rows, each with its own sum",
    "lab/bench/measure.py:_reset_peak": "a switch of the kernel's",
    "data/text.py:_encode": "into the folder of `cached`",
    "data/cache.py:write_tokens": "into the folder of `cached`",
    "data/labelled.py:build": "into the folder of `cached`",
    "data/parallel.py:_build": "into the folder of `cached`",
    "data/images.py:build": "into the folder of `cached`",
    "stores/store/writing.py:__init__": "appends rows, each stretch with its own sum",
    "cli/ranks.py:spoken": "into nothing",
    "cli/ranks.py:tell": "a file of torchrun's, which reads it when this process is gone",
    "lab/show/style.py:svg_text": "into memory",
}


def opens_for_writing(call: ast.Call) -> bool:
    """Whether a call writes a file by its name or its mode."""
    attribute = isinstance(call.func, ast.Attribute)
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    modes = [
        a.value
        for a in (*call.args, *(k.value for k in call.keywords if k.arg == "mode"))
        if isinstance(a, ast.Constant) and isinstance(a.value, str)
    ]
    if name == "open":
        return any(set(mode) & set("wax+") and len(mode) < 4 for mode in modes)
    if name == "memmap":
        return any(k.arg == "mode" and ast.unparse(k.value) != "'r'" for k in call.keywords)
    saves = name in ("save", "savez") and ast.unparse(call.func) in SAVES
    return name in WRITERS or saves or (name == "write_text" and attribute)


def outside_of_writers(tree: ast.AST, function: str = "", whole: bool = False) -> list[str]:
    """Functions in which something is written outside of a block of the one way."""
    found = []
    for node in ast.iter_child_nodes(tree):
        inside, name = whole, function
        if isinstance(node, ast.FunctionDef):
            name = node.name
        if isinstance(node, ast.With):
            inside = whole or any("written_whole" in ast.unparse(i) for i in node.items)
        if isinstance(node, ast.Call) and opens_for_writing(node) and not inside:
            found.append(name)
        found += outside_of_writers(node, name, inside)
    return found


def test_nobody_else_opens_files_for_writing() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        for function in outside_of_writers(ast.parse(path.read_text(encoding="utf-8"))):
            found.add(place if place in ALLOWED else f"{place}:{function}")
    assert found == set(ALLOWED)
