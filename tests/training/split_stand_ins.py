"""Trainings that processes share, of a few small members in float64, and what came of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_stand_ins import tiny_text

import everyformer as ef
from everyformer.training.config import TrainingConfig
from everyformer.training.logging import read_metrics
from everyformer.training.loop import train
from everyformer.training.parallel.world import join
from everyformer.training.run import RunDirectory
from everyformer.training.saved import load_model

SELDOM = pytest.mark.full("two processes each, of which one case runs every time", parts=3)
STEPPED: dict[str, dict[str, Any]] = {
    "gpt": {"attention_dropout": 0.0},
    "rope": {"residual": "reversible", "tie": False},
    "routing": {"clusters": 2, "window": 4},
    "transformer-xl": {"slots": 30},
    "aft-local": {},
    "calm": {},
}
"""ties and tables without decay, a reversible stack, centroids, a memory that reads more before
some windows than others, a parameter of one row, and layers that tokens leave"""
LENGTH, ROWS = 8, 6


def stepped_model(member: str) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 2, "layers": 2, "vocabulary": 11, "max_length": LENGTH}
    still = {"dropout": 0.0, "embedding_dropout": 0.0}
    options = {**sizes, **still, **STEPPED.get(member, {})}
    return ef.create_model(member, **options).double()


def options_of(steps: int, **more: Any) -> TrainingConfig:
    plain: dict[str, Any] = {
        "batch": ROWS, "threads": 1, "device": "cpu", "log_every": 1, "evaluate_every": 2,
        "checkpoint_every": 2, "clip": 0.5, "ema": 0.7, "lr": 0.01, "schedule": "constant",
        "warmup": 0.0, "evaluate_sequences": None,
    }  # fmt: skip
    return TrainingConfig(steps=steps, **{**plain, **more})


def trained(folder: Path, members: tuple[str, ...], steps: int, **more: Any) -> None:
    """Each member trained, or on, in its folder; runs alone or as one of several processes."""
    with join("cpu"):
        for member in members:
            data = tiny_text(LENGTH, tokens=403, held_out=44)
            with RunDirectory(folder / member, resume="auto") as run:
                config = options_of(steps, **more)
                train(stepped_model(member), data, config, run, resume=run.resumes, show=False)


def split(folder: Path, members: tuple[str, ...], steps: int, accumulate: int) -> None:
    trained(folder, members, steps, parallel="fsdp", accumulate=accumulate)


def losses(folder: Path, begin: int = 0) -> list[float]:
    """Of the steps after ``begin``, and of the evaluations."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > begin]
    return [row["loss"] if "loss" in row else row["evaluation"]["loss"] for row in rows]


def norms(folder: Path) -> list[float]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [row["grad_norm"] for row in rows if "grad_norm" in row]


def check_weights(one: Path, two: Path) -> None:
    expected, found = load_model(one).state_dict(), load_model(two).state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-8, msg=name)
