"""Weights split over processes: the gradient, the steps and the checkpoints of one process."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from training_stand_ins import TinyModel, processes, tiny_text, two_processes
from whole_members import PAIRS, gradients, model_and_batch, plain_gradient

import everyformer as ef
from everyformer.core.errors import ConfigError, PluginError
from everyformer.training.checkpoint import checkpoints, newest_checkpoint
from everyformer.training.config import TrainingConfig
from everyformer.training.logging import read_metrics
from everyformer.training.loop import train
from everyformer.training.parallel.alike import check_alike
from everyformer.training.parallel.shared import whole
from everyformer.training.parallel.world import World, join
from everyformer.training.run import RunDirectory
from everyformer.training.saved import load_model
from everyformer.training.step import backward

CPU = torch.device("cpu")
THIRDS = [PAIRS[n::3] for n in range(3)]
NUMBERS = pytest.mark.full("numbers of every member on two real processes", parts=3)


def write_gradients(folder: Path, pairs: list[tuple[str, str]], parallel: Any, slices: int) -> None:
    with join("cpu") as joined:
        world = replace(joined, parallel=parallel, shards=2 if parallel == "hybrid" else None)
        for member, task in pairs:
            model, batch = model_and_batch(member, task)
            module = world.wrap(model)
            torch.manual_seed(1)
            own = batch.rows(*world.own.of(ROWS))
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
@pytest.mark.parametrize("slices", [1, 3])
def test_every_member_has_the_gradient_of_one_process(
    children: ForkServerContext, tmp_path: Path, pairs: list[tuple[str, str]], slices: int
) -> None:
    two_processes(children, write_gradients, tmp_path, pairs, "fsdp", slices)
    check_gradients(tmp_path, pairs)


SOME = [("gpt", "lm"), ("reformer", "lm"), ("transformer", "seq2seq"), ("longformer", "mlm")]


def test_weights_split_within_groups_have_the_gradient_of_one_process(
    children: ForkServerContext, tmp_path: Path
) -> None:
    pairs = [(member, task) for member, task in PAIRS if (member, task) in SOME]
    processes(children, 4, write_gradients, tmp_path, pairs, "hybrid", 1)
    check_gradients(tmp_path, pairs)


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
    member: str, task: str, expected: list[list[str]]
) -> None:
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


def test_a_process_holds_about_half_of_the_weights_and_moments(
    children: ForkServerContext, tmp_path: Path
) -> None:
    two_processes(children, count_held, tmp_path)
    for rank in (0, 1):
        bytes_of = load_file(tmp_path / f"held-{rank}.safetensors")
        for member in BIG:
            share = bytes_of[f"fsdp {member}"] / bytes_of[f"ddp {member}"]
            assert 0.49 < share < 0.55, (member, rank)


STEPPED: dict[str, dict[str, Any]] = {
    "gpt": {"attention_dropout": 0.0},
    "rope": {"wiring": "reversible", "tie": False},
    "routing": {"clusters": 2, "window": 4},
    "transformer-xl": {"slots": 6},
    "aft-local": {},
    "calm": {},
}
"""ties and tables without decay, a reversible stack, centroids, a memory, a parameter of one row"""
LENGTH, ROWS = 8, 6


def stepped_model(member: str) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 2, "layers": 2, "vocabulary": 11, "max_length": LENGTH}
    still = {"dropout": 0.0, "embedding_dropout": 0.0}
    options = {**sizes, **still, **STEPPED[member]}
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
            data = tiny_text(LENGTH, tokens=403, held_out=60)
            with RunDirectory(folder / member, resume="auto") as run:
                config = options_of(steps, **more)
                train(stepped_model(member), data, config, run, resume=run.resumes, show=False)


def split(folder: Path, members: tuple[str, ...], steps: int, accumulate: int) -> None:
    trained(folder, members, steps, parallel="fsdp", accumulate=accumulate)


def losses(folder: Path, begin: int = 0) -> list[float]:
    """Of the steps after ``begin``, and of the evaluations."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > begin]
    return [row["loss"] if "loss" in row else row["evaluation"]["loss"] for row in rows]


def check_weights(one: Path, two: Path) -> None:
    expected, found = load_model(one).state_dict(), load_model(two).state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_evaluations_and_the_average_are_those_of_one_process(
    children: ForkServerContext, tmp_path: Path, accumulate: int, without_tensorboard: None
) -> None:
    members = tuple(STEPPED)
    two_processes(children, split, tmp_path / "two", members, 4, accumulate)
    trained(tmp_path / "one", members, 4)
    for member in members:
        one, two = tmp_path / "one" / member, tmp_path / "two" / member
        assert losses(two) == pytest.approx(losses(one), rel=1e-9), member
        check_weights(one, two)


WAYS: list[tuple[int, str]] = [(1, "ddp"), (2, "ddp"), (2, "fsdp"), (3, "fsdp")]
RESUMED = [((2, "fsdp"), way) for way in WAYS] + [(way, (2, "fsdp")) for way in WAYS[:2]]


def some_way(folder: Path, parallel: Any, steps: int) -> None:
    trained(folder, ("gpt", "transformer-xl"), steps, parallel=parallel)


@pytest.mark.parametrize(("before", "after"), RESUMED)
def test_a_checkpoint_goes_on_under_any_splitting(
    children: ForkServerContext, tmp_path: Path, before: Any, after: Any, without_tensorboard: None
) -> None:
    for (size, parallel), steps in ((before, 3), (after, 5)):
        processes(children, size, some_way, tmp_path / "run", parallel, steps)
    trained(tmp_path / "one", ("gpt", "transformer-xl"), 5)
    for member in ("gpt", "transformer-xl"):
        one, run = tmp_path / "one" / member, tmp_path / "run" / member
        found, expected = losses(run, begin=3), losses(one, begin=3)
        # an evaluation at the end of the first sitting has no partner
        assert found[0] == pytest.approx(expected[0], rel=1e-12), member
        assert found[-2:] == pytest.approx(expected[-2:], rel=1e-9), member
        assert (checkpoints(run / "checkpoints")[-1] / "model.safetensors").exists()
        check_weights(one, run)


def killed_while_saving(folder: Path, moment: str, rank: int) -> None:
    """The second save ends one process: before it writes, after, or as the folder is sealed."""
    from everyformer.training import checkpoint
    from everyformer.training.parallel import saving

    saves = []

    def die(now: str) -> None:
        if now == moment and len(saves) == 2 and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def run(*inputs: Any, **options: Any) -> Any:
            if before == "write":
                saves.append(1)
            die(before)
            result = function(*inputs, **options)
            die(after)
            return result

        return run

    saving.dcp.save = around(saving.dcp.save, "write", "written")  # type: ignore[assignment]
    checkpoint._seal = around(checkpoint._seal, "seal", "sealed")
    try:
        trained(folder, ("gpt",), 6, parallel="fsdp", evaluate_every=None)
    except BaseException:
        # what the other process says of it is asked elsewhere
        os._exit(1)


@pytest.mark.parametrize(
    ("moment", "rank"),
    [("write", 1), ("written", 1), ("written", 0), ("seal", 0), ("sealed", 0)],
)
def test_a_save_that_is_cut_off_leaves_the_checkpoint_before(
    children: ForkServerContext, tmp_path: Path, moment: str, rank: int, without_tensorboard: None
) -> None:
    with pytest.raises(AssertionError):
        two_processes(children, killed_while_saving, tmp_path, moment, rank)
    folder = tmp_path / "gpt" / "checkpoints"
    found = newest_checkpoint(folder)
    assert found is not None
    assert found[1].steps == 2
    trained(tmp_path, ("gpt",), 6, evaluate_every=None)
    trained(tmp_path / "one", ("gpt",), 6, evaluate_every=None)
    assert losses(tmp_path / "gpt")[-1] == pytest.approx(losses(tmp_path / "one" / "gpt")[-1])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def without_room(folder: Path) -> None:
    from everyformer.training.parallel import saving

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if os.environ["RANK"] == "1":
        saving.dcp.HuggingFaceStorageWriter.write_data = full  # type: ignore[assignment]
    with pytest.raises(ef.EveryformerError, match="the disk is full"):
        trained(folder, ("gpt",), 6, parallel="fsdp", evaluate_every=None)


def test_a_disk_that_is_full_on_one_machine_ends_all(
    children: ForkServerContext, tmp_path: Path, without_tensorboard: None
) -> None:
    two_processes(children, without_room, tmp_path)


def apart(folder: Path) -> None:
    with join("cpu") as world:
        model = TinyModel()
        check_alike(model, world)
        model.calls += world.rank
        with pytest.raises(PluginError, match=r"'calls', which TinyModel .* differs between the 2"):
            check_alike(model, world)


def test_buffers_that_drift_apart_are_named(children: ForkServerContext, tmp_path: Path) -> None:
    two_processes(children, apart, tmp_path)


def uneven_groups(folder: Path) -> None:
    with join("cpu") as world, pytest.raises(ConfigError, match="2 processes cannot be parted"):
        replace(world, parallel="hybrid", shards=3).wrap(TinyModel())


def test_groups_that_do_not_part_the_processes_are_refused(
    children: ForkServerContext, tmp_path: Path
) -> None:
    two_processes(children, uneven_groups, tmp_path)


def test_alone_nothing_is_split() -> None:
    model = TinyModel()
    assert World(CPU, parallel="fsdp").wrap(model) is model
    with pytest.raises(ConfigError, match="'compile' does not go with 'parallel' fsdp"):
        TrainingConfig(parallel="fsdp", compile=True)
