"""The commands of docs/scaling-out.md as torchrun starts them, with two processes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented import ROOT, smaller, write_stand_ins

PAGE = "docs/scaling-out.md"
LINES = re.findall(r"^torchrun .*$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_some() -> None:
    assert len(LINES) > 2


@pytest.mark.full("half a minute each: torchrun and two processes that import torch", parts=6)
@pytest.mark.parametrize("line", LINES)
def test_torchrun_runs_it(line: str, tmp_path: Path) -> None:
    words = shlex.split(line)
    start = words.index("everyformer")
    launched = [sys.executable, "-m", "torch.distributed.run", *words[1:start]]
    small = smaller((*words[start + 1 :],))
    if "train" in small:
        small += ["--training.device", "cpu"]
    write_stand_ins(tmp_path, PAGE)
    done = subprocess.run(
        [*launched, "everyformer", *small], cwd=tmp_path, capture_output=True, text=True,
        timeout=300, env={**os.environ, "EVERYFORMER_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "process 2 of 2" not in done.stderr
