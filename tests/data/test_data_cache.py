"""Cached folders: whole and as they were made, or made again."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import DataError
from everyformer.data.cache import cached

CONTENT = bytes(range(40))


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.calls += 1
        (folder / "train.bin").write_bytes(CONTENT)
        (folder / "tokenizer.json").write_text('{"kind": "bytes"}')
        return {"tokens": 40, "documents": [1, 2]}


@pytest.mark.parametrize("name", ["train.bin", "tokenizer.json", "facts.json"])
def test_any_flipped_bit_is_noticed_and_made_anew(tmp_path: Path, name: str) -> None:
    build = Builder()
    folder, facts = cached(tmp_path, "text-1", build)
    whole = (folder / name).read_bytes()
    damaging = [place for place, byte in enumerate(whole) if byte not in b" \n" or name[0] != "f"]
    damaging = damaging[:: max(1, len(damaging) // 40)]
    for place in damaging:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (folder / name).write_bytes(damaged)
        again, same = cached(tmp_path, "text-1", build)
        assert (again / name).read_bytes() == whole
        assert same == facts
    assert build.calls == 1 + len(damaging)
    assert cached(tmp_path, "text-1", build)[1] == facts
    assert build.calls == 1 + len(damaging)
    assert os.listdir(tmp_path) == ["text-1"]


def test_a_kill_while_encoding_leaves_nothing_for_ever(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, pathlib\n"
        "from everyformer.data.cache import cached\n"
        "def build(folder):\n"
        "    (folder / 'train.bin').write_bytes(bytes(10**6))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "cached(pathlib.Path(sys.argv[1]), 'text-1', build)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(os.listdir(tmp_path)) == 1
    cached(tmp_path, "text-2", Builder())
    assert os.listdir(tmp_path) == ["text-2"]


def test_of_two_that_build_the_same_the_first_stays(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, Any]:
        cached(tmp_path, "text-1", Builder())
        (folder / "train.bin").write_bytes(b"second")
        return {}

    folder, _ = cached(tmp_path, "text-1", build)
    assert (folder / "train.bin").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write the data cache.*`data\.cache`"):
        cached(tmp_path / "file" / "below", "text-1", Builder())
