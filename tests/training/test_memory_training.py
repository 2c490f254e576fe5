"""Training and evaluating with a memory: what is carried, kept, gone on from and measured."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from training_stand_ins import tiny_text

import everyformer as ef
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.modules import memories_of
from everyformer.core.state import named_tensors
from everyformer.training import operations
from everyformer.training.carry import TextCarry
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate
from everyformer.training.long_text import evaluate_long
from everyformer.training.loop import train
from everyformer.training.optimiser import clip_gradients, parameter_groups
from everyformer.training.parallel.world import World
from everyformer.training.run import RunDirectory
from everyformer.training.step import backward

WORLD = World(torch.device("cpu"))
MEMBERS = {
    "transformer-xl": {"slots": 6},
    "compressive": {"slots": 4, "compressed": 3, "rate": 2},
    "adaptive-span": {"memory": "segment", "slots": 6, "window": 6, "ramp": 3, "start": 0.3},
}
BOTH = pytest.mark.parametrize("name", MEMBERS)


def model(name: str, seed: int = 0, **more: object) -> torch.nn.Module:
    torch.manual_seed(seed)
    options = {**MEMBERS[name], "dropout": 0.0, "embedding_dropout": 0.0, **more}
    sizes = {"width": 16, "heads": 2, "layers": 2, "vocabulary": 11}
    made = ef.create_model(name, **{**sizes, **options})
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.double()


@pytest.mark.full("6 s each: every operation of a training is counted")
@pytest.mark.parametrize("name", ["transformer-xl", "compressive", "memorizing"])
def test_operations_are_counted_as_a_memory_fills(name, tmp_path, monkeypatch):
    """A first step reads no memory, and is no measure of those that do."""
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 2, "vocabulary": 11}
    config = TrainingConfig(steps=24, batch=2, device="cpu", evaluate_every=None)
    # steps that are only timed are not slowed by counting
    spent = {"timed": train(ef.create_model(name, **sizes), tiny_text(5), config, show=False).flops}
    for way in ("told", "counted", "first"):
        made = ef.create_model(name, **sizes)
        if way != "told":
            due = lambda self, _, way=way: way == "counted" or not self._state.steps  # noqa: E731
            monkeypatch.setattr(operations.Operations, "due", due)
        spent[way] = train(
            made, tiny_text(5), config, RunDirectory(tmp_path / way), show=False
        ).flops
    assert spent["told"] == pytest.approx(spent["counted"], rel=0.06)
    assert spent["timed"] == spent["first"] < 0.8 * spent["counted"]


@BOTH
def test_a_step_goes_on_where_the_rows_of_the_last_ended(name):
    made, data = model(name).train(), tiny_text(5)
    carry = TextCarry(made, WORLD)
    state = made.init_state(4)
    for step in range(4):
        batch = data.segment(step, 4)
        made.zero_grad()
        backward(made, batch, WORLD, carry=carry)
        gradients = [None if p.grad is None else p.grad.clone() for p in made.parameters()]
        made.zero_grad()
        out = made(batch.inputs, targets=batch.targets, mask=batch.mask, state=state)
        out.loss.backward()
        state = out.state.detach()
        for ours, p in zip(gradients, made.parameters(), strict=True):
            assert (ours is None) == (p.grad is None)
            if ours is not None:
                torch.testing.assert_close(ours, p.grad)
        for a, b in zip(carry.of(0, 4).tensors(), state.tensors(), strict=True):
            torch.testing.assert_close(a, b)
            assert not a.requires_grad


@BOTH
def test_slices_carry_their_own_rows(name):
    made, data = model(name).train(), tiny_text(5)
    whole, halves = TextCarry(made, WORLD), TextCarry(made, WORLD)
    for step in range(4):
        batch = data.segment(step, 4)
        sums = []
        for carry, slices in ((whole, 1), (halves, 2)):
            made.zero_grad()
            backward(made, batch, WORLD, slices=slices, carry=carry)
            own = [p for p in made.parameters() if not getattr(p, "apart", False)]
            sums.append(torch.cat([p.grad.flatten() for p in own if p.grad is not None]))
        torch.testing.assert_close(*sums)


@BOTH
def test_a_resumed_run_is_the_run_that_never_stopped(name, tmp_path: Path):
    def run(folder: str, steps: int, resume: bool) -> torch.nn.Module:
        made = model(name).float()
        config = TrainingConfig(
            steps=steps, batch=4, accumulate=2, schedule="constant", warmup=0.0, keep=9,
            evaluate_every=None, checkpoint_every=2, device="cpu",
        )  # fmt: skip
        out = RunDirectory(tmp_path / folder, resume=resume)
        train(made, tiny_text(5), config, out, resume=resume, show=False)
        return made

    whole = run("whole", 6, False)
    run("parts", 4, False)
    parts = run("parts", 6, True)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(a, b)
    saved = sorted((tmp_path / "parts" / "checkpoints").glob("*/memory.safetensors"))
    assert len(saved) == 3


@BOTH
def test_reading_in_order_is_reading_segment_by_segment(name):
    made, data = model(name).eval(), tiny_text(5)
    found = evaluate_long(made, data, mode="recurrent")
    state, total = made.init_state(1), 0.0
    tokens = torch.from_numpy(data.validation.astype(np.int64))[None]
    for first in range(0, 67, 5):
        out = made(tokens[:, first : min(first + 5, 67)], state=state)
        state = out.state
        goals = tokens[0, first + 1 : first + 6]
        loss = F.cross_entropy(out.logits[0, : len(goals)], goals, reduction="sum")
        total += float(loss.detach())
    assert found["scored"] == 67
    assert found["loss"] == pytest.approx(total / 67)
    assert sum(one["targets"] for one in found["by_place"]) == 67
    contexts = {one["from"]: one["targets"] for one in found["by_context"]}
    assert contexts == {1: 1, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32, 64: 4}


def test_all_modes_score_as_many_targets():
    made, data = model("transformer-xl").eval(), tiny_text(5)
    modes = [{"mode": m} for m in ("nonoverlapping", "sliding", "recurrent")]
    modes += [{"mode": "recurrent", "streams": n} for n in (2, 3, 50, 10**11)]
    assert {evaluate_long(made, data, **mode)["scored"] for mode in modes} == {67}


def test_a_window_is_scored_with_what_the_memory_would_hold():
    """With one layer and a whole memory of context, windows are the text read in order."""
    made, data = model("transformer-xl", layers=1).eval(), tiny_text(5)
    ordered = evaluate_long(made, data, mode="recurrent")
    warmed = evaluate(made, data, batch=3)
    assert warmed["loss"] == pytest.approx(ordered["loss"])
    cold = evaluate(made, data, batch=3, remember=False)
    assert abs(cold["loss"] - ordered["loss"]) > 1e-3
    for memory in memories_of(made):
        memory.slots = 0
    # no memory: nothing is carried, and nothing hides the segment from itself
    assert evaluate(made, data)["loss"] == pytest.approx(
        evaluate_long(made, data, mode="nonoverlapping")["loss"]
    )


def test_a_compression_is_clipped_and_optimised_apart():
    made = model("compressive").train()
    apart = [p for p in made.parameters() if getattr(p, "apart", False)]
    for group in parameter_groups(made, 0.1):
        assert len({getattr(p, "apart", False) for p in group["params"]}) == 1
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter) * (100 if parameter in set(apart) else 1e-3)
    common = [p for p in made.parameters() if not getattr(p, "apart", False)]
    norm = clip_gradients(made.parameters(), 1.0)
    assert norm == pytest.approx(1e-3 * sum(p.numel() for p in common) ** 0.5)
    assert all((p.grad == 1e-3).all() for p in common)
    own = torch.cat([p.grad.flatten() for p in apart])
    assert float(own.norm()) == pytest.approx(1.0, rel=1e-4)


def test_wrong_modes_are_refused():
    made, data = model("transformer-xl"), tiny_text(5)
    with pytest.raises(ConfigError, match="streams"):
        evaluate_long(made, data, mode="sliding", streams=2)
    bert = ef.create_model("attention", "mlm", width=16, heads=2, layers=1, vocabulary=11)
    with pytest.raises(UnsupportedError):
        evaluate_long(bert, data, mode="recurrent")


@BOTH
def test_what_is_carried_is_saved_and_taken_up(name):
    made, data = model(name).train(), tiny_text(5)
    carry, other = TextCarry(made, WORLD), TextCarry(made, WORLD)
    for step in range(3):
        backward(made, data.segment(step, 4), WORLD, slices=2, carry=carry)
    other.fill({k: v.clone() for k, v in carry.tensors().items()})
    parts = [carry.of(0, 2), carry.of(2, 4)]
    # as they were saved, and cut otherwise
    for cuts in ((0, 2, 4), (0, 1, 4), (0, 4)):
        again = [named_tensors(other.of(*rows)) for rows in itertools.pairwise(cuts)]
        for path in named_tensors(parts[0]):
            values, found = (
                torch.cat([each[path] for each in states])
                for states in ([named_tensors(part) for part in parts], again)
            )
            assert torch.equal(found, values)
