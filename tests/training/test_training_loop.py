"""The loop: what it writes, when it stops, and what it refuses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training_stand_ins import TinyData, TinyModel, tiny_training, train_tiny

import everyformer as ef
from everyformer.blocks.stack import Stack
from everyformer.core.errors import CheckpointError, ConfigError, DivergedError, UnsupportedError
from everyformer.core.outputs import ModelOutput
from everyformer.core.tasks import TASKS
from everyformer.data.batch import Batch
from everyformer.training import RunDirectory, train
from everyformer.training.checkpoint import checkpoints
from everyformer.training.evaluate import evaluate
from everyformer.training.logging import read_metrics
from everyformer.training.operations import positions
from everyformer.training.schedule import schedule_factor


def test_a_model_learns() -> None:
    model, data = TinyModel(), TinyData()
    config = tiny_training(steps=300, lr=0.03, log_every=50, ema=0.9)
    result = train(model, data, config, show=False)
    # it holds the averaged weights
    assert evaluate(model, data, limit=256)["loss"] == result.evaluation["loss"]
    assert result.evaluation["loss"] < 1.0
    assert result.path is None
    assert result.left_out == 3
    assert result.peak_rss > 1e7
    assert result.tokens == 300 * 42
    assert result.tokens_per_second > 0


def test_rows_hold_what_is_promised(tmp_path: Path) -> None:
    noam = {"schedule": "noam", "warmup_steps": 4, "lr": 8e-3, "steps": 8, "log_every": 1}
    train_tiny(tmp_path / "noam", **noam)
    rates = [row["lr"] for row in read_metrics(tmp_path / "noam" / "metrics.jsonl") if "lr" in row]
    assert rates == pytest.approx([8e-3 * min(s / 4, (4 / s) ** 0.5) for s in range(1, 9)])
    result = train_tiny(tmp_path / "run", log_every=5)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [1, 5, 10, 12]
    wanted = "step tokens flops seconds loss lr grad_norm tokens_per_second"
    assert all(set(row) == set(wanted.split()) for row in steps)
    factor = schedule_factor("cosine", 4 / 12, warmup=0.05, floor=0.1)
    assert steps[1]["lr"] == pytest.approx(1e-3 * factor)
    assert steps[-1]["flops"] == result.flops == 12 * steps[0]["flops"] > 0
    evaluations = [row for row in rows if "evaluation" in row]
    assert [row["step"] for row in evaluations] == [4, 8, 12]
    assert result.evaluation == {"step": 12, **evaluations[-1]["evaluation"]}
    losses = [row["evaluation"]["loss"] for row in evaluations]
    assert result.best["loss"] == min(losses)


def test_a_run_ends_with_the_evaluation_that_reaches_its_accuracy(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 300, "lr": 0.03, "evaluate_every": 20, "log_every": 20}
    whole = train_tiny(tmp_path / "whole", **options)
    rows = read_metrics(tmp_path / "whole" / "metrics.jsonl")
    curve = {row["step"]: row["evaluation"] for row in rows if "evaluation" in row}
    goal = (curve[20]["accuracy"] + whole.evaluation["accuracy"]) / 2
    first = next(step for step, found in curve.items() if found["accuracy"] >= goal)
    assert 20 < first < 300
    for resume in (False, True):  # a run that has ended is not trained on
        short = train_tiny(tmp_path / "short", resume=resume, stop_at=goal, **options)
        assert short.evaluation == {"step": first, **curve[first]}
    assert checkpoints(tmp_path / "short" / "checkpoints")[-1].name == f"step-{first:08d}"
    with pytest.raises(ConfigError, match="`evaluate_every` is none: give the steps"):
        tiny_training(stop_at=0.5, evaluate_every=None)
    with pytest.raises(ConfigError, match="is an accuracy, but the task regress-text predicts num"):
        tiny_training(stop_at=0.5).check_task(TASKS["regress-text"])


def test_the_step_that_ends_a_run_is_saved_whatever_its_loss(tmp_path, monkeypatch):
    found = iter([{"loss": 1.0, "accuracy": 0.1}, {"loss": 2.0, "accuracy": 0.9}])
    monkeypatch.setattr("everyformer.training.loop.evaluate", lambda *given, **named: next(found))
    train_tiny(tmp_path / "run", stop_at=0.5, checkpoint_every=None)
    kept = [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")]
    assert kept == ["step-00000004", "step-00000008"]


def test_an_accuracy_that_a_model_has_not_ends_no_run(monkeypatch):
    monkeypatch.setattr("everyformer.training.loop.evaluate", lambda *given, **named: {"loss": 1.0})
    with pytest.raises(ConfigError, match="is an accuracy, but this model's losses are none of"):
        train_tiny(None, stop_at=0.5)


def test_operations_are_counted_forward_and_backward() -> None:
    # two matrix products of 8 x 8 and 8 x 11 a token; each costs twice as much going back
    result = train_tiny(None, steps=2)
    assert result.left_out == 0
    assert result.flops == 2 * 42 * 3 * 2 * (8 * 8 + 8 * 11)


def test_config_describes_the_whole_run(tmp_path: Path) -> None:
    data, config = TinyData(split="even"), tiny_training(steps=2)
    with RunDirectory(tmp_path / "run") as run:
        extra = {"member": "tiny"}
        train(TinyModel(), data, config, run, extra_config=extra, show=False)
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert values["member"] == "tiny"
    assert values["model"]["width"] == 8
    assert values["training"]["betas"] == [0.9, 0.95]
    assert values["data"]["split"] == "even"
    assert values["tokenizer"] is None
    assert values["version"] == 1


@pytest.mark.parametrize("moment", [1, 8])
def test_a_loss_that_is_no_number_stops_with_the_last_checkpoint(tmp_path, moment):
    with pytest.raises(DivergedError) as caught:
        train_tiny(tmp_path / "run", model={"break_at": moment}, evaluate_every=None)
    message = str(caught.value)
    assert f"step {moment}" in message
    kept = checkpoints(tmp_path / "run" / "checkpoints")
    assert [path.name[-1] for path in kept] == ([] if moment == 1 else ["3", "6"])
    assert (str(kept[-1]) if kept else "no checkpoint") in message
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps == list(range(1, moment))


def test_a_gradient_that_is_no_number_changes_no_weight() -> None:
    class Broken(TinyModel):
        def forward(self, *inputs: Any, **named: Any) -> Any:
            out = super().forward(*inputs, **named)
            root = (self.inner.weight * 0).sum().sqrt()  # 0, but its gradient is 0 * infinity
            return out._replace(losses={"task": out.losses["task"] + root})

    model = Broken()
    before = model.inner.weight.detach().clone()
    with pytest.raises(DivergedError, match="norm of the gradient became nan in step 1"):
        train(model, TinyData(), tiny_training(), show=False)
    assert torch.equal(model.inner.weight, before)


class Blind(TinyModel):
    """Its loss is a number in training alone."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        out = super().forward(*inputs, **named)
        return out if self.training else out._replace(logits=out.logits * math.nan)


@pytest.mark.parametrize(("evaluate_every", "kept"), [(4, []), (None, ["step-00000008"])])
def test_an_evaluation_that_is_no_number_keeps_the_checkpoint_before(
    evaluate_every, kept, tmp_path
):
    """The evaluations of steps 4 and 12; one checkpoint is kept at a time."""
    config = tiny_training(checkpoint_every=4, keep=1, evaluate_every=evaluate_every)
    with (
        RunDirectory(tmp_path / "run") as run,
        pytest.raises(DivergedError, match=f"evaluation.*{kept[0] if kept else 'no checkpoint'}"),
    ):
        train(Blind(), TinyData(), config, run, show=False)
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == kept


def test_the_last_step_is_saved_before_it_is_evaluated(tmp_path, monkeypatch):
    def fail(*given: Any, **named: Any) -> None:
        raise RuntimeError("the evaluation fails")

    options = {"evaluate_every": None, "checkpoint_every": None, "keep": 1}
    monkeypatch.setattr("everyformer.training.loop.evaluate", fail)
    with pytest.raises(RuntimeError, match="the evaluation fails"):
        train_tiny(tmp_path / "run", **options)
    assert [p.name for p in checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000012"]
    monkeypatch.undo()
    found = train_tiny(tmp_path / "run", resume=True, **options).evaluation
    assert found == train_tiny(tmp_path / "other", **options).evaluation


def test_options_reach_the_model_and_torch() -> None:
    model, threads = TinyModel(), torch.get_num_threads()
    config = tiny_training(checkpoint_activations=True, steps=1)
    train(model, TinyData(), config, show=False)
    assert model.checkpointing
    assert torch.get_num_threads() == threads
    model.enable_checkpointing = None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="checkpoint_activations"):
        train(model, TinyData(), config, show=False)


def test_a_budget_of_operations_needs_operations_to_count() -> None:
    class Weightless(TinyModel):
        def forward(self, inputs: Any, targets: Any = None, mask: Any = None) -> ModelOutput:
            loss = self.table.square().mean()
            return ModelOutput(self.table, loss, {"task": loss}, None)

    with pytest.raises(UnsupportedError, match="budget_flops"):
        train(Weightless(), TinyData(), tiny_training(budget_flops=1e6), show=False)


def test_compiled_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module: compile_(module, backend="eager"))
    plain, compiled = (train_tiny(None, compile=on) for on in (False, True))
    assert compiled.evaluation["loss"] == pytest.approx(plain.evaluation["loss"], rel=1e-5)
    assert compiled.flops == plain.flops


READ = [
    # 1 + (24 / 4)^2 patches of 27,648 / 16 = 1,728 channel values each row; 8 x 8 / 16 and a class
    ("vit", "classify-image", {"image": (3, 24, 24), "patch": 4}, 37),
    ("attention", "classify-image", {"image": (3, 24, 24), "patch": 4}, 36),
    ("attention", "pixels", {"image": (3, 4, 4)}, 48),
    ("attention", "pixels", {"image": (3, 4, 4), "pixels": {"output": "mixture"}}, 16),
    ("attention", "super-resolution", {"image": (1, 4, 4), "source_image": (1, 2, 2)}, 20),
]


@pytest.mark.parametrize(("member", "task", "options", "expected"), READ)
def test_of_pictures_the_positions_that_layers_read_are_counted(member, task, options, expected):
    sizes = {"width": 8, "heads": 2, "layers": 1}
    model = ef.create_model(member, task, **sizes, **options)
    channels, rows, columns = options.get("source_image", options["image"])
    batch = Batch(torch.zeros(5, channels, rows, columns), torch.zeros(5))
    assert positions(model, batch) == 5 * expected
    seen: list[int] = []
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        stack.register_forward_hook(lambda _, given, out: seen.append(out.y.shape[1]))
    image = torch.zeros(5, *options["image"], dtype=torch.uint8)
    if task == "super-resolution":
        image = torch.zeros(5, *options["source_image"], dtype=torch.uint8)
    count = options["image"][0] * options["image"][1] * options["image"][2]
    goals = torch.zeros(5, dtype=torch.long) if "class" in task else torch.zeros(5, count).long()
    model(image, targets=goals)
    assert sum(seen) == expected


def test_a_failed_save_ends_the_run_with_the_earlier_checkpoints(tmp_path, monkeypatch):
    from everyformer.training import checkpoint

    write = checkpoint.write_tensors

    def fail_at_six(path: Path, *rest: Any) -> None:
        if "00000006" in str(path) and path.name.startswith("optimiser"):
            raise OSError(28, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(checkpoint, "write_tensors", fail_at_six)
    with pytest.raises(CheckpointError, match="disk is full"):
        train_tiny(tmp_path / "run", evaluate_every=None)
    monkeypatch.undo()
    assert train_tiny(tmp_path / "run", resume=True, evaluate_every=None).steps == 12
