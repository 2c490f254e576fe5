"""Config, schedule, parameter groups, running average and evaluation, each by itself."""

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from training_stand_ins import TinyData, TinyModel

from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.data.batch import WHOLE, Portion
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate
from everyformer.training.logging import MetricsLog, read_metrics
from everyformer.training.optimiser import (
    WeightAverage,
    build_optimiser,
    clip_gradients,
    parameter_groups,
    set_learning_rate,
)
from everyformer.training.parallel.world import World
from everyformer.training.progress import Progress
from everyformer.training.schedule import learning_rate, schedule_factor


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 1}, "1 step"),
        ({"steps": 2000}, "2,000 steps"),
        ({"budget_seconds": 1.0}, "1 second"),
        ({"budget_seconds": 0.5}, "0.5 seconds"),
    ],
)
def test_a_budget_has_words(options: dict[str, Any], words: str) -> None:
    assert TrainingConfig(**options).budget_words == words


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"budget_seconds": 1.0, "budget_tokens": 1.0}, ("budget_seconds", "budget_tokens")),
        ({"steps": 5, "budget_seconds": 1.0}, ("steps", "budget_seconds")),
        ({"batch": 2, "accumulate": 3}, ("batch", "accumulate")),
        ({"steps": 0}, ("steps",)),
        ({"clip": 0.0}, ("clip",)),
        ({"ema": 1.0}, ("ema",)),
        ({"betas": (0.9, 1.0)}, ("betas[1]",)),
        ({"warmup": 1.5}, ("warmup",)),
        ({"budget_flops": -1.0}, ("budget_flops",)),
        ({"lr": math.nan}, ("lr",)),
        ({"warmup_steps": 10}, ("warmup_steps", "schedule")),
        ({"schedule": "noam", "budget_seconds": 5.0}, ("warmup_steps",)),
        ({"keep": 0}, ("keep",)),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**options)
    assert all(f"`{name}`" in str(caught.value) for name in named)


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_schedule_rises_from_its_floor_to_one(kind: str) -> None:
    rise = [schedule_factor(kind, p, warmup=0.2, floor=0.1) for p in (0.0, 0.1, 0.2)]
    assert rise == pytest.approx([0.1, 0.55, 1.0])
    points = [schedule_factor(kind, p / 50, warmup=0.2, floor=0.1) for p in range(10, 51)]
    assert points == sorted(points, reverse=True)
    assert min(points) >= 0.1


def test_schedule_values() -> None:
    def at(kind: str, progress: float) -> float:
        return schedule_factor(kind, progress, warmup=0.2, floor=0.1)

    assert at("cosine", 0.6) == pytest.approx(0.55)
    assert at("cosine", 1.0) == pytest.approx(0.1)
    assert at("linear", 0.4) == pytest.approx(0.1 + 0.9 * 0.75)
    assert at("constant", 1.0) == 1.0
    assert schedule_factor("cosine", 0.0, warmup=0.0, floor=0.1) == 1.0
    assert schedule_factor("linear", 1.0, warmup=1.0, floor=0.1) == pytest.approx(0.1)


def test_noam_is_the_published_rate_of_every_step() -> None:
    width, warmup = 512, 4000
    config = TrainingConfig(
        schedule="noam", warmup_steps=warmup, budget_seconds=60.0, lr=(width * warmup) ** -0.5
    )
    for step in (1, 2, 3999, 4000, 4001, 16000):
        published = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert learning_rate(config, 0.3, step) == pytest.approx(published, rel=1e-12)
    assert learning_rate(config, 0.3, warmup) == pytest.approx(6.99e-4, rel=1e-3)
    assert learning_rate(config, 0.3, 4 * warmup) == pytest.approx(config.lr / 2)
    # or over a fraction of the steps
    config = TrainingConfig(schedule="noam", steps=200, warmup=0.25, lr=1.0)
    assert learning_rate(config, 0.0, 1) == pytest.approx(1 / 50)
    assert learning_rate(config, 49 / 200, 50) == 1.0


def test_only_matrices_decay() -> None:
    model = TinyModel()
    model.inner.weight.lr_scale = 0.5  # type: ignore[attr-defined]
    names = {id(p): name for name, p in model.named_parameters()}
    found = {
        (group["weight_decay"], group["lr_scale"]): {names[id(p)] for p in group["params"]}
        for group in parameter_groups(model, 0.3)
    }
    assert found == {
        (0.3, 1.0): {"embedding.weight", "unused.weight"},
        (0.3, 0.5): {"inner.weight"},
        (0.0, 1.0): {"table", "norm.weight", "norm.bias", "inner.bias", "unused.bias"},
    }
    optimiser = build_optimiser(model, TrainingConfig())
    set_learning_rate(optimiser, 0.02)
    assert {group["lr"] for group in optimiser.param_groups} == {0.02, 0.01}


def test_frozen_parameters_are_left_out() -> None:
    model = TinyModel().requires_grad_(False)
    with pytest.raises(UnsupportedError, match="no parameter of this model asks for a gradient"):
        build_optimiser(model, TrainingConfig())
    model.inner.requires_grad_(True)
    assert sum(len(g["params"]) for g in parameter_groups(model, 0.1)) == 2


def test_clipping_tells_the_norm_before_it() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert clip_gradients(weights, None) == 5.0
    assert clip_gradients(weights, 1.0) == 5.0
    assert clip_gradients(weights, 1.0) == pytest.approx(1.0, abs=1e-5)


def test_average_follows_its_formula() -> None:
    model = TinyModel().double()
    average, expected = WeightAverage(model, 0.9), model.inner.weight.detach().clone()
    for _ in range(5):
        with torch.no_grad():
            model.inner.weight += torch.randn_like(model.inner.weight)
        average.update(model)
        expected = 0.9 * expected + 0.1 * model.inner.weight.detach()
    torch.testing.assert_close(average.values["inner.weight"], expected)
    raw = model.inner.weight.detach().clone()
    with average.applied(model):
        torch.testing.assert_close(model.inner.weight.detach(), expected)
    assert torch.equal(model.inner.weight, raw)
    assert model.head.weight is model.embedding.weight


def test_evaluation_weighs_by_scored_targets() -> None:
    model, data = TinyModel(), TinyData()
    [whole] = data.validation_batches(100)
    logits = model.eval()(whole.inputs, whole.targets).logits.flatten(0, 1)
    flat = whole.targets.flatten()
    model.train()
    before = torch.get_rng_state()
    for size in (1, 4, 100):
        found = evaluate(model, data, batch=size)
        assert found["loss"] == pytest.approx(cross_entropy(logits, flat).item(), rel=1e-6)
        assert found["scored"] == whole.scored
        assert found["sequences"] == 21
        hits = (logits.argmax(-1) == flat).sum().item() / whole.scored
        assert found["accuracy"] == pytest.approx(hits)
        assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2) / 2)
        assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
        assert found["loss_interval"][0] < found["loss"] < found["loss_interval"][1]
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_interval_is_that_of_a_mean_when_rows_are_equally_long() -> None:
    class Even(TinyData):
        def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Any:
            batch = super().train_batch(step, size, seed, portion)
            return type(batch)(batch.inputs, batch.inputs)

    model, data = TinyModel(), Even(held_out=50)
    [whole] = data.validation_batches(50)
    logits = model.eval()(whole.inputs).logits
    rows = cross_entropy(logits.transpose(1, 2), whole.targets, reduction="none").mean(1).double()
    found = evaluate(model, data)
    half = 2.0095752371292392 * rows.std().item() / math.sqrt(50)
    expected = [rows.mean().item() - half, rows.mean().item() + half]
    assert found["loss_interval"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("many", [5, 6, 11])
def test_classifiers_get_wilson_no_perplexity_and_no_five_of_five(many: int) -> None:
    class Classes(TinyData):
        def validation_batches(self, size: int, limit: int | None = None) -> Any:
            for batch in super().validation_batches(size, limit):
                yield type(batch)(batch.inputs, batch.inputs[:, 0] % many)

    class Right(TinyModel):
        def forward(self, inputs: Any, targets: Any = None, mask: Any = None) -> Any:
            out = super().forward(inputs)
            right = torch.nn.functional.one_hot(inputs[:, 0] % many, many).float() * 9
            return out._replace(logits=right, losses={"task": cross_entropy(right, targets)})

    data = Classes(task="classify-text", bytes_per_token=None, classes=(*"abcdefghijk"[:many],))
    found = evaluate(Right(), data)
    assert found["accuracy"] == 1.0
    assert found.get("top5") == (1.0 if many > 5 else None)
    assert found["accuracy_interval"] == pytest.approx([21 / (21 + 1.959964**2), 1.0])
    assert not {"perplexity", "bits_per_byte"} & set(found)


def test_nothing_scored_is_an_error() -> None:
    class Nothing(TinyData):
        def validation_batches(self, size: int, limit: int | None = None) -> Any:
            for batch in super().validation_batches(size, limit):
                yield type(batch)(batch.inputs, torch.full_like(batch.targets, -100))

    with pytest.raises(DataError, match="no scored target"):
        evaluate(TinyModel(), Nothing())


def test_shares_cover_all_rows_once() -> None:
    shares = [World(torch.device("cpu"), rank, 3).own.of(8) for rank in range(3)]
    assert shares == [(0, 2), (2, 5), (5, 8)]


def test_log_drops_rows_beyond_the_checkpoint(tmp_path, monkeypatch) -> None:
    monkeypatch.undo()  # with tensorboard
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2, 3):
        log.write({"step": step})
    log.close()
    with path.open("a") as file:
        file.write('{"ste')
    log = MetricsLog(path, 2)
    log.write({"step": 3, "loss": 1.5, "evaluation": {"loss": 2.0}})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]
    assert list((tmp_path / "tensorboard").iterdir())


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_plain_lines_or_a_bar_on_a_terminal(terminal, capfd, monkeypatch):
    monkeypatch.setattr("everyformer.training.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    bar = Progress("run", 0.25)
    bar.update(0.5, 10, 1.25, 12345.0)
    bar.say("note")
    bar.close()
    drawn = capfd.readouterr().err
    if terminal:
        assert "note" in drawn
        assert "25%" in drawn
    else:
        lines = ["run:  50%  step 10, loss 1.2500, 12,345 tokens/s, 0:00 left", "run: note"]
        assert drawn.splitlines() == lines
