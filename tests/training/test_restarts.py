"""Processes that fall and are started again by torchrun: the curve of a run that nothing befell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everyformer.cli import main
from everyformer.training.logging import read_metrics

WORDS = (
    *("train", "gpt", "--data", "text.txt", "--steps", "9", "--batch", "4", "--length", "16"),
    *("--width", "16", "--layers", "1", "--heads", "2", "--model.block.dropout", "0"),
    *("--model.embedding-dropout", "0", "--mixer.attention-dropout", "0"),
    *("--training.threads", "1", "--training.device", "cpu"),
    *("--training.checkpoint-every", "2", "--training.log-every", "1"),
)
FALLS = """
import os, signal, sys
from everyformer.cli import main
from everyformer.training import loop

update = loop.update

def fall(session, dataset):
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        if session.state.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    return update(session, dataset)

loop.update = fall
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full("half a minute: torchrun, and processes that import torch twice", parts=3)
def test_a_process_that_dies_costs_the_steps_since_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("a warm tree and a quick fox " * 60)
    Path("falls.py").write_text(FALLS)
    launched = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")
    done = subprocess.run(
        [sys.executable, *launched, "falls.py", *WORDS, "--resume", "auto", "--out", "two"],
        capture_output=True, text=True, timeout=300, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "going on from step 4" in done.stderr
    assert main([*WORDS, "--out", "one"]) == 0
    two, one = (
        {
            row["step"]: row["loss"]
            for row in read_metrics(Path(name) / "metrics.jsonl")
            if "loss" in row
        }
        for name in ("two", "one")
    )
    assert sorted(two) == list(range(1, 10))
    assert two == pytest.approx(one, rel=1e-4)
