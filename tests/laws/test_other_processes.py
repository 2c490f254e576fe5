"""What a process gives to a model is no part of its answer: hashes, orders of sets, times."""

import subprocess
import sys
from pathlib import Path

import pytest

from sequence_laws import check
from sequence_laws.targets import target

NET = """
import hashlib, pathlib, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.register_buffer("drawn", torch.randn(4), persistent=False)
        self.factor = {factor}

    def forward(self, x):
        return self.embed(x).cumsum(1) * self.drawn * self.factor
"""
WORDS = "{'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight'}"
FACTORS = {
    "a hash": "hash('word') % 1009 / 100",
    "an order of a set": f"float(''.join(str(len(w)) for w in {WORDS})) / 1e7",
    "a time": "time.time() % 1e4 / 1e4",
}
RIGHT = {
    "a digest": "int(hashlib.sha256(b'word').hexdigest(), 16) % 1009 / 100",
    "a set in order": f"float(''.join(str(len(w)) for w in sorted({WORDS}))) / 1e7",
    "a set that is asked": f"1.0 + ('one' in {WORDS})",
}
ALL = [
    pytest.param(what, marks=() if what == "a hash" else pytest.mark.full("two processes each"))
    for what in (*FACTORS, *RIGHT)
]


@pytest.mark.parametrize("what", ALL)
def test_a_deep_look_makes_a_model_again_in_other_processes(what: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET.format(factor={**FACTORS, **RIGHT}[what]), encoding="utf-8")
    subject = target(f"{file}:Net")
    [usual] = check(subject, laws=["determinism"])
    assert usual.status == "held", usual
    [deep] = check(subject, laws=["determinism"], depth="deep")
    assert deep.status == ("failed" if what in FACTORS else "held"), deep
    if what in RIGHT:
        assert deep.detail.endswith("; in two processes equal")
        return
    assert "in two processes, whose hashes of text differ, outputs differ by" in deep.detail
    program = [sys.executable, "-c", deep.reproduction]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    assert float(ran.stdout) > 1e-6


def test_a_process_that_fails_is_said(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET.format(factor=1.0), encoding="utf-8")
    subject = target(f"{file}:Net")
    subject.build = ("import torch.no_such_thing", *subject.build)
    [deep] = check(subject, laws=["determinism"], depth="deep")
    assert deep.status == "held"
    assert "another process fails: ModuleNotFoundError: No module named" in deep.detail
