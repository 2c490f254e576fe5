"""Slices, processes and precision do not change what a step computes."""

from __future__ import annotations

import os
import socket
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from training_stand_ins import TinyBatch, TinyConfig, TinyData, TinyModel, train_tiny

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.mask import Mask
from everyformer.training.distributed import World, join
from everyformer.training.logging import read_metrics
from everyformer.training.step import backward, seed_step

ALONE = World(torch.device("cpu"))


def gradients(model: TinyModel) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def uneven_batch() -> TinyBatch:
    """Rows with 7 down to 1 scored targets, and two with none."""
    batch = TinyData().train_batch(3, 9, 0)
    targets = batch.targets.clone()
    targets[-2:] = -100
    return TinyBatch(batch.inputs, targets, batch.keep)


def whole_gradient(extra: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    """By one plain backward pass, without the library."""
    model, batch = TinyModel(TinyConfig(extra_loss=extra)).double(), uneven_batch()
    out = model(batch.inputs, targets=batch.targets, mask=Mask(keep=batch.keep))
    assert out.loss is not None
    out.loss.backward()
    return gradients(model), {name: loss.item() for name, loss in out.losses.items()}


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("slices", [1, 2, 4, 9])
def test_slices_give_the_gradient_of_the_batch(slices: int, extra: bool) -> None:
    expected, losses = whole_gradient(extra)
    model = TinyModel(TinyConfig(extra_loss=extra)).double()
    found = backward(model, uneven_batch(), ALONE, slices=slices)  # type: ignore[arg-type]
    assert found == pytest.approx(losses, rel=1e-12)
    assert set(gradients(model)) - set(expected) == set()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)


def test_a_batch_without_scored_targets_is_refused() -> None:
    batch = TinyData().train_batch(0, 2, 0)
    empty = TinyBatch(batch.inputs, torch.full_like(batch.targets, -100))
    with pytest.raises(DataError, match="no target"):
        backward(TinyModel(), empty, ALONE)  # type: ignore[arg-type]


def as_rank(rank: int, port: int, job: Any, *arguments: Any) -> None:
    """What torchrun sets, then ``job``; runs in a child."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    job(*arguments)


def two_processes(children: ForkServerContext, job: Any, *arguments: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        children.Process(target=as_rank, args=(rank, port, job, *arguments)) for rank in (0, 1)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in ranks] == [0, 0]


def write_gradient(folder: Path, slices: int, extra: bool) -> None:
    model = TinyModel(TinyConfig(extra_loss=extra)).double()
    with join("cpu") as world:
        wrapped = world.wrap(model)
        losses = backward(wrapped, uneven_batch(), world, slices=slices)  # type: ignore[arg-type]
        kept = gradients(model) | {
            f"loss {name}": torch.tensor(loss, dtype=torch.float64) for name, loss in losses.items()
        }
        save_file(kept, folder / f"rank-{world.rank}.safetensors")


@pytest.mark.parametrize(("slices", "extra"), [(1, False), (4, True)])
def test_two_processes_give_the_gradient_of_one(
    children: ForkServerContext, tmp_path: Path, slices: int, extra: bool
) -> None:
    two_processes(children, write_gradient, tmp_path, slices, extra)
    expected, losses = whole_gradient(extra)
    for rank in (0, 1):
        found = load_file(tmp_path / f"rank-{rank}.safetensors")
        for name, loss in losses.items():
            assert found.pop(f"loss {name}").item() == pytest.approx(loss, rel=1e-12)
        assert set(found) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


def train_in_world(out: Path, resume: bool, steps: int) -> None:
    result = train_tiny(out, resume=resume, steps=steps, schedule="constant", ema=0.5)
    assert result.steps == steps
    assert result.evaluation is not None


def test_two_processes_train_save_and_resume_as_one(
    children: ForkServerContext, tmp_path: Path, without_tensorboard: None
) -> None:
    two_processes(children, train_in_world, tmp_path / "two", False, 6)
    two_processes(children, train_in_world, tmp_path / "two", True, 12)
    train_tiny(tmp_path / "one", schedule="constant", ema=0.5)
    two, one = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("two", "one"))
    assert [row["step"] for row in two if "loss" in row] == list(range(1, 13))
    ours, expected = losses_by_step(two), losses_by_step(one)
    assert {step: ours[step] for step in expected} == pytest.approx(expected, rel=1e-4)


def losses_by_step(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{row['step']} {'evaluated' if 'evaluation' in row else 'trained'}": row.get(
            "evaluation", row
        )["loss"]
        for row in rows
    }


def test_a_batch_too_small_for_the_slices_is_refused() -> None:
    with pytest.raises(ConfigError, match="'accumulate'"):
        train_tiny(None, batch=2, accumulate=3)


def test_accumulation_trains_the_same() -> None:
    whole, cut = (train_tiny(None, accumulate=slices) for slices in (1, 4))
    assert whole.evaluation is not None
    assert cut.evaluation is not None
    assert cut.evaluation["loss"] == pytest.approx(whole.evaluation["loss"], rel=1e-5)
    assert (cut.tokens, cut.flops) == (whole.tokens, whole.flops)


def test_bfloat16_trains_near_float32_with_weights_kept_in_float32() -> None:
    found = {
        precision: train_tiny(None, precision=precision, steps=60, lr=0.02)
        for precision in ("float32", "bfloat16")
    }
    losses = {name: result.evaluation["loss"] for name, result in found.items()}  # type: ignore[index]
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] < 2.0


def test_randomness_follows_from_seed_step_and_rank() -> None:
    def draw(*numbers: int) -> float:
        seed_step(*numbers)
        return float(torch.rand(()))

    assert draw(0, 1) == draw(0, 1, 0)
    assert len({draw(0, 1), draw(0, 2), draw(1, 1), draw(0, 1, 1), draw(0, 11)}) == 5
