"""Slices, processes and precision do not change what a step computes."""

import random
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from training_stand_ins import TinyConfig, TinyData, TinyModel, train_tiny, two_processes

import everyformer as ef
from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.data.batch import Batch
from everyformer.training import step as step_module
from everyformer.training.checks import check_training
from everyformer.training.config import TrainingConfig
from everyformer.training.logging import read_metrics
from everyformer.training.parallel.world import World, join
from everyformer.training.step import backward, seed_step

ALONE = World(torch.device("cpu"))


def gradients(model: TinyModel) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def uneven_batch() -> Batch:
    """Rows with 7 down to 1 scored targets, and two with none."""
    batch = TinyData().train_batch(3, 9, 0)
    targets = batch.targets.clone()
    targets[-2:] = -100
    return Batch(batch.inputs, targets, batch.padding_mask)


def whole_gradient(extra: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    """By one plain backward pass, without the library."""
    model, batch = TinyModel(TinyConfig(extra_loss=extra)).double(), uneven_batch()
    out = model(batch.inputs, targets=batch.targets, mask=Mask(padding_mask=batch.padding_mask))
    out.loss.backward()
    return gradients(model), {name: loss.item() for name, loss in out.losses.items()}


@pytest.mark.parametrize(("slices", "extra"), [(1, True), (2, False), (4, True), (9, True)])
def test_slices_give_the_gradient_of_the_batch(slices: int, extra: bool) -> None:
    expected, losses = whole_gradient(extra)
    model = TinyModel(TinyConfig(extra_loss=extra)).double()
    found = backward(model, uneven_batch(), ALONE, slices=slices)
    assert found == pytest.approx(losses, rel=1e-12)
    assert set(gradients(model)) - set(expected) == set()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)


OWN_TERMS = [
    ("learned-per-layer", {"layer_losses": True, "lookahead": 0.5}, {"layers", "ahead"}),
    ("routing", {"clusters": 2, "window": 4}, {"commitment"}),
    ("universal", {"tau": 0.5, "halting_bias": -1.0, "dropout": 0.0, "embedding_dropout": 0.0},
     {"ponder"}),
]  # fmt: skip


def uneven_text() -> Batch:
    """Six rows with 9, 2, 7, 1, 0 and 5 scored targets; padding on the right of some."""
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 11, (6, 10), generator=generator)
    padding_mask = torch.arange(9) < torch.tensor([9, 3, 9, 2, 4, 6])[:, None]
    scored = torch.arange(9) < torch.tensor([9, 2, 7, 1, 0, 5])[:, None]
    return Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(~scored, -100), padding_mask)


def with_own_terms(member: str, options: dict[str, Any]) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"width": 8, "layers": 3, "heads": 2, "vocabulary": 11, "max_length": 9}
    return ef.create_model(member, **sizes, **options).double().train()


@pytest.mark.parametrize(("member", "options", "names"), OWN_TERMS)
@pytest.mark.parametrize("slices", [2, 6])
def test_slices_weigh_terms_by_what_they_are_means_over(member, options, names, slices):
    plain = with_own_terms(member, options)
    batch = uneven_text()
    out = plain(batch.inputs, targets=batch.targets, mask=batch.mask)
    out.loss.backward()
    model = with_own_terms(member, options)
    found = backward(model, batch, ALONE, slices=slices)
    assert names <= set(found)
    assert found == pytest.approx({n: t.item() for n, t in out.losses.items()}, rel=1e-12)
    for (name, a), (_, b) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-12, msg=name)


def write_own_terms(folder: Path) -> None:
    with join("cpu") as world:
        model = with_own_terms(*OWN_TERMS[0][:2])
        own = uneven_text().rows(*world.own.of(len(uneven_text().targets)))
        backward(world.wrap(model), own, world, slices=3)
        if world.first:
            save_file(gradients(model), folder / "gradient.safetensors")


@pytest.mark.full("processes that import torch")
def test_two_processes_weigh_terms_by_what_they_are_means_over(children, tmp_path):
    plain, batch = with_own_terms(*OWN_TERMS[0][:2]), uneven_text()
    plain(batch.inputs, targets=batch.targets, mask=batch.mask).loss.backward()
    two_processes(children, write_own_terms, tmp_path)
    found = load_file(tmp_path / "gradient.safetensors")
    for name, gradient in gradients(plain).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


OWN_DRAWS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"dropout": 0.3, "embedding_dropout": 0.2, "attention_dropout": 0.3, "drop_path": 0.3}),
    ("rope", {"dropout": 0.2, "feedforward_dropout": 0.3, "attention_dropout": 0.3}),
    ("alibi", {"attention_dropout": 0.3}),
    ("t5-relative", {"attention_dropout": 0.3}),
    ("xl-relative", {"attention_dropout": 0.3}),
    ("linformer-chunked", {"attention_dropout": 0.3, "causal_chunk": 3, "k": 2}),
    ("longformer", {"attention_dropout": 0.3, "window": 2}),
    ("sinkhorn", {"attention_dropout": 0.3, "block_size": 3}),
    ("reformer", {"dropout": 0.3, "attention_dropout": 0.3}),
]
"""what rows draw, and what they share, as hashes"""
COUNTED: tuple[str, dict[str, Any]] = ("performer", {"dropout": 0.3, "redraw": 1})
"""its features are drawn again at every call, and each slice is one"""


def drawing(member: str, options: dict[str, Any]) -> tuple[torch.nn.Module, Batch]:
    batch = uneven_text()
    seed_step(3, 7)
    return with_own_terms(member, options), Batch(batch.inputs, batch.targets, None)


def drawn_whole(member: str, options: dict[str, Any]) -> dict[str, Tensor]:
    """By one plain backward pass."""
    model, batch = drawing(member, options)
    seed_step(0, 1)
    model(batch.inputs, targets=batch.targets).loss.backward()
    return gradients(model)


@pytest.mark.parametrize(("member", "options"), OWN_DRAWS)
def test_slices_drop_what_the_batch_drops(member: str, options: dict[str, Any]) -> None:
    expected = drawn_whole(member, options)
    model, batch = drawing(member, options)
    seed_step(0, 1)
    backward(model, batch, ALONE, slices=3)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def write_drawn(folder: Path) -> None:
    with join("cpu") as world:
        for member, options in (*OWN_DRAWS, COUNTED):
            model, batch = drawing(member, options)
            wrapped, own = world.wrap(model), batch.rows(*world.own.of(len(batch.targets)))
            seed_step(0, 1, world.rank)
            backward(wrapped, own, world)
            if world.first:
                save_file(gradients(model), folder / f"{member}.safetensors")


@pytest.mark.full("processes that import torch")
def test_two_processes_drop_what_one_drops(children: ForkServerContext, tmp_path: Path) -> None:
    two_processes(children, write_drawn, tmp_path)
    for member, options in (*OWN_DRAWS, COUNTED):
        expected = drawn_whole(member, options)
        found = load_file(tmp_path / f"{member}.safetensors")
        assert any(float(gradient.abs().amax()) > 0 for gradient in expected.values())
        for name, gradient in expected.items():
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-9, atol=1e-12, msg=f"{member} {name}"
            )


def test_more_slices_than_rows_no_target_and_no_gradient_are_refused() -> None:
    batch = TinyData().train_batch(0, 2, 0)
    empty = Batch(batch.inputs, torch.full_like(batch.targets, -100))
    with pytest.raises(DataError, match="no target"):
        backward(TinyModel(), empty, ALONE)
    model = TinyModel()
    model.forward = torch.no_grad()(model.forward)  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="the loss of this model carries no gradient"):
        backward(model, batch, ALONE)
    told = r"has 9 sequences, fewer than 1 processes times `accumulate` \(10\) need"
    with pytest.raises(ConfigError, match=told):
        backward(TinyModel().double(), uneven_batch(), ALONE, slices=10)
    two = World(torch.device("cpu"), size=2)
    config = TrainingConfig(steps=1, batch=5, accumulate=3, device="cpu")
    told = r"`batch` \(5\) has fewer sequences than 2 processes times `accumulate` \(3\) need"
    with pytest.raises(ConfigError, match=told):
        check_training(TinyModel(), TinyData(), config, two)


def write_gradient(folder: Path, slices: int, extra: bool) -> None:
    model = TinyModel(TinyConfig(extra_loss=extra)).double()
    with join("cpu") as world:
        wrapped = world.wrap(model)
        own = uneven_batch().rows(*world.own.of(9))
        losses = backward(wrapped, own, world, slices=slices)
        kept = gradients(model) | {
            f"loss {name}": torch.tensor(loss, dtype=torch.float64) for name, loss in losses.items()
        }
        save_file(kept, folder / f"rank-{world.rank}.safetensors")


@pytest.mark.parametrize(
    ("slices", "extra"),
    [(1, False), pytest.param(4, True, marks=pytest.mark.full("two processes more"))],
)
def test_two_processes_give_the_gradient_of_one(children, tmp_path, slices, extra):
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


@pytest.mark.full("seconds each", parts=3)
def test_two_processes_train_save_and_resume_as_one(children, tmp_path):
    two_processes(children, train_in_world, tmp_path / "two", False, 6)
    two_processes(children, train_in_world, tmp_path / "two", True, 12)
    train_tiny(tmp_path / "one", schedule="constant", ema=0.5)
    two, one = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("two", "one"))
    assert [row["step"] for row in two if "loss" in row] == list(range(1, 13))
    # what all have read and computed, not one alone
    for counted in ("tokens", "flops"):
        ours_so_far, so_far = ([r[counted] for r in rows if "loss" in r] for rows in (two, one))
        assert ours_so_far == so_far, counted
    ours, expected = losses_by_step(two), losses_by_step(one)
    assert {step: ours[step] for step in expected} == pytest.approx(expected, rel=1e-4)


def losses_by_step(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{row['step']} {'evaluated' if 'evaluation' in row else 'trained'}": row.get(
            "evaluation", row
        )["loss"]
        for row in rows
    }


def test_accumulation_trains_the_same() -> None:
    whole, cut = (train_tiny(None, accumulate=slices) for slices in (1, 4))
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


def test_randomness_follows_from_seed_and_step_and_of_accelerators_from_the_rank(monkeypatch):
    given: list[int] = []
    monkeypatch.setattr(step_module, "seed_all", given.append)

    def draw(*numbers: int) -> tuple[float, float, float]:
        seed_step(*numbers)
        return float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002

    assert draw(0, 1) == draw(0, 1, 0) == draw(0, 1, 1)
    assert given[0] == given[1] != given[2]
    every = [draw(0, 1), draw(0, 2), draw(1, 1), draw(0, 11)]
    assert [len(set(kind)) for kind in zip(*every, strict=True)] == [4, 4, 4]
