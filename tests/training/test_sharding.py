"""Weights split over processes: the gradient, the steps and the checkpoints of one process."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from split_stand_ins import SELDOM, STEPPED, check_weights, losses, norms, split, trained
from torch import Tensor, nn
from training_stand_ins import TinyModel, processes, two_processes
from whole_members import PAIRS, gradients, model_and_batch, plain_gradient

import everyformer as ef
from everyformer.core.errors import ConfigError, PluginError
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.shared import whole
from everyformer.training.parallel.world import World, check_alike, join
from everyformer.training.step import backward

CPU = torch.device("cpu")
THIRDS = [PAIRS[n::3] for n in range(3)]
FOUR = pytest.mark.full("four processes at once on two cores", parts=5)
NUMBERS = pytest.mark.full("numbers of every member on two real processes", parts=5)


def write_gradients(folder: Path, pairs: list[tuple[str, str]], parallel: Any, slices: int) -> None:
    with join("cpu") as joined:
        world = replace(joined, parallel=parallel, shards=2 if parallel == "hybrid" else None)
        for member, task in pairs:
            model, batch = model_and_batch(member, task)
            module = world.wrap(model)
            torch.manual_seed(1)
            own = batch.rows(*world.own.of(len(batch.targets)))
            losses = backward(module, own, world, slices=slices)
            found = {name: whole(g).contiguous() for name, g in gradients(model).items()}
            found["the loss"] = torch.tensor(sum(losses.values()), dtype=torch.float64)
            if world.first:
                save_file(found, folder / f"{member} {task}.safetensors")


def check_gradients(folder: Path, pairs: list[tuple[str, str]]) -> None:
    for member, task in pairs:
        loss, expected = plain_gradient(member, task)
        found = load_file(folder / f"{member} {task}.safetensors")
        assert found.pop("the loss").item() == pytest.approx(loss, rel=1e-12), member
        assert found.keys() == expected.keys(), member
        for name, gradient in expected.items():
            # some biases have no influence at all: their gradients are what rounding leaves
            most = max(gradient.abs().max().item(), 1e-2)
            torch.testing.assert_close(
                found[name], gradient, rtol=0, atol=1e-10 * most, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("pairs", [pytest.param(each, marks=NUMBERS) for each in THIRDS])
@pytest.mark.parametrize(("parallel", "slices"), [("fsdp", 1), ("fsdp", 3), ("ddp", 3)])
def test_every_member_has_the_gradient_of_one_process(children, tmp_path, pairs, parallel, slices):
    two_processes(children, write_gradients, tmp_path, pairs, parallel, slices)
    check_gradients(tmp_path, pairs)


# the tables of longformer's global tokens are used by nobody here
SOME = [("gpt", "lm"), ("reformer", "lm"), ("transformer", "seq2seq"), ("longformer", "mlm")]


@FOUR
def test_weights_split_within_groups_have_the_gradient_of_one_process(children, tmp_path):
    processes(children, 4, write_gradients, tmp_path, SOME, "hybrid", 1)
    check_gradients(tmp_path, SOME)


def units(member: str, task: str) -> list[list[str]]:
    """Names of the units of each stack, below it."""
    model, _ = model_and_batch(member, task)
    stacks = [part for part in model.modules() if hasattr(part, "units")]
    return [
        [
            next(name for name, part in stack.named_modules() if part is unit)
            for unit in stack.units()
        ]
        for stack in stacks
    ]


@pytest.mark.parametrize(
    ("member", "task", "expected"),
    [
        ("gpt", "lm", [["blocks.0", "blocks.1"]]),
        ("reformer", "lm", [[""]]),
        ("t5-relative", "lm", [[""]]),
        ("adaptive-span", "lm", [[""]]),
        ("transformer", "seq2seq", [[""], ["blocks.0", "blocks.1"]]),
        ("universal", "lm", [[]]),
        ("calm", "lm", [[]]),
    ],
)
def test_blocks_are_units_where_they_are_called_one_by_one_and_share_nothing(
    member, task, expected
):
    assert sorted(units(member, task)) == sorted(expected)


def held(model: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    tensors: list[Any] = [*model.parameters()]
    tensors += [t for moments in optimiser.state.values() for t in moments.values()]
    return sum(t.to_local().nbytes if hasattr(t, "to_local") else t.nbytes for t in tensors)


BIG = ("gpt", "aft-full", "gmlp")


def count_held(folder: Path) -> None:
    from everyformer.training.optimiser import build_optimiser

    counts: dict[str, Tensor] = {}
    sizes = {"width": 48, "heads": 3, "layers": 2, "vocabulary": 51, "max_length": 32}
    with join("cpu") as joined:
        for parallel in ("ddp", "fsdp"):
            for member in BIG:
                model = ef.create_model(member, **sizes)
                module = replace(joined, parallel=parallel).wrap(model)
                optimiser = build_optimiser(model, TrainingConfig())
                tokens = torch.randint(51, (2, 32))
                module(tokens, targets=tokens).loss.backward()
                optimiser.step()
                counts[f"{parallel} {member}"] = torch.tensor(held(model, optimiser))
        save_file(counts, folder / f"held-{joined.rank}.safetensors")


@pytest.mark.full("seconds each", parts=3)
def test_a_process_holds_about_half_of_the_weights_and_moments(children, tmp_path):
    two_processes(children, count_held, tmp_path)
    for rank in (0, 1):
        bytes_of = load_file(tmp_path / f"held-{rank}.safetensors")
        for member in BIG:
            share = bytes_of[f"fsdp {member}"] / bytes_of[f"ddp {member}"]
            assert 0.49 < share < 0.55, (member, rank)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("accumulate", [3, pytest.param(1, marks=SELDOM)])
def test_steps_evaluations_and_the_average_are_those_of_one_process(children, tmp_path, accumulate):
    members = tuple(STEPPED)
    two_processes(children, split, tmp_path / "two", members, 4, accumulate)
    trained(tmp_path / "one", members, 4)
    for member in members:
        one, two = tmp_path / "one" / member, tmp_path / "two" / member
        assert losses(two) == pytest.approx(losses(one), rel=1e-9), member
        assert norms(two) == pytest.approx(norms(one), rel=1e-9), member
        check_weights(one, two)


class Sometimes(nn.Module):
    """One weight for all, one for the first process alone, one for nobody."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("always", "first", "never"):
            weight = nn.Parameter(torch.arange(4.0, dtype=torch.float64).view(4, 1) + 1)
            self.register_parameter(name, weight)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.always
        return (y + x @ self.first if os.environ["RANK"] == "0" else y).sum()


def use_some(folder: Path) -> None:
    with join("cpu") as joined:
        model = Sometimes()
        module = replace(joined, parallel="fsdp").wrap(model)
        with module.slice(last=True):
            module(torch.full((1, 4), 2.0, dtype=torch.float64)).backward()
        found = {name: whole(g).flatten().tolist() for name, g in gradients(model).items()}
        assert found == {"always": [2.0] * 4, "first": [1.0] * 4}
        # buffers that drift apart are named
        tiny = TinyModel()
        check_alike(tiny, joined)
        tiny.calls += joined.rank
        with pytest.raises(PluginError, match=r"'calls', which TinyModel .* differs between the 2"):
            check_alike(tiny, joined)
        with pytest.raises(ConfigError, match="2 processes cannot be parted"):
            replace(joined, parallel="hybrid", shards=3).wrap(TinyModel())


@pytest.mark.full("processes that import torch")
def test_a_weight_that_one_process_uses_learns_and_what_differs_is_refused(children, tmp_path):
    """One that none uses does not learn."""
    two_processes(children, use_some, tmp_path)


def test_alone_nothing_is_split() -> None:
    model = TinyModel()
    assert World(CPU, parallel="fsdp").wrap(model) is model
    with pytest.raises(ConfigError, match="`compile` goes with `parallel` ddp alone, not fsdp"):
        TrainingConfig(parallel="fsdp", compile=True)
