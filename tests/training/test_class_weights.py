"""Weights of classes: scikit-learn's balanced ones, in the mean of rows, of training alone."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from everyformer.core.errors import ConfigError
from everyformer.data.arrays import ArrayDataset
from everyformer.data.batch import Batch
from everyformer.training import TrainingConfig, train
from everyformer.training.checks import weigh_classes
from everyformer.training.evaluate import evaluate
from everyformer.training.parallel.world import World
from everyformer.training.step import backward
from helpers import build_model

WORLD = World(torch.device("cpu"))
LABELS = np.array([0] * 13 + [1] * 5 + [2] * 2)
BALANCED = TrainingConfig(class_weights="balanced", steps=3, batch=6, device="cpu")


def data(**changes: Any) -> ArrayDataset:
    values = np.random.default_rng(0).standard_normal((20, 4, 2)).astype(np.float32)
    known: dict[str, Any] = {
        "name": "toy", "task": "classify-series", "kind": "series", "vocabulary": 256,
        "classes": ("a", "b", "c"), "length": 4, "split": "", "fingerprint": "", "inputs": values,
        "lengths": None, "labels": LABELS, "train_rows": np.arange(0, 20, 2),
        "validation_rows": np.arange(1, 20, 2),
    }  # fmt: skip
    return ArrayDataset(**known | changes)


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    known: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "classes": 3, "series": 2}
    result = build_model("attention", "classify-series", max_length=4, **known | options)
    torch.nn.init.normal_(result.pool.head.weight)
    return result.double().train()


def test_balanced_weights_are_scikit_learns_over_the_training_rows() -> None:
    """A class without a training row weighs nothing."""
    for rows, more in ((np.arange(0, 20, 2), []), (np.arange(15), [0])):
        labels = LABELS[rows]
        expected = compute_class_weight("balanced", classes=np.unique(labels), y=labels)
        np.testing.assert_allclose(data(train_rows=rows).balanced_weights, [*expected, *more])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_mean_of_weighted_rows_in_training_alone(smoothing: float) -> None:
    toy, made = data(), model(label_smoothing=smoothing)
    weigh_classes(made, toy, BALANCED)
    batch = toy.rows(np.arange(20))
    out = made(batch.inputs.double(), targets=batch.targets)
    weights = torch.tensor(toy.balanced_weights).to(out.logits)
    plain = F.cross_entropy(out.logits, batch.targets, label_smoothing=smoothing)
    summed = F.cross_entropy(
        out.logits, batch.targets, weights, label_smoothing=smoothing, reduction="sum"
    )
    weighted = summed / len(batch.targets)
    torch.testing.assert_close(out.loss.double(), weighted, atol=1e-6, rtol=1e-6)
    assert abs(plain - weighted) > 1e-3
    torch.testing.assert_close(
        made.eval()(batch.inputs.double(), targets=batch.targets).loss, plain
    )
    weigh_classes(made.train(), toy, TrainingConfig())
    torch.testing.assert_close(made(batch.inputs.double(), targets=batch.targets).loss, plain)


@pytest.mark.parametrize("slices", [2, 5])
def test_slices_of_a_batch_have_its_weighted_gradient(slices: int) -> None:
    toy = data()
    rows = toy.rows(np.arange(20))
    batch = Batch(rows.inputs.double(), rows.targets)
    found = []
    for count in (1, slices):
        made = model()
        weigh_classes(made, toy, BALANCED)
        losses = backward(made, batch, WORLD, slices=count)
        found.append((losses["task"], [weight.grad for weight in made.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-7, rtol=1e-5)


def test_a_training_weighs_and_its_evaluation_does_not() -> None:
    toy, models = data(), (model().float(), model().float())
    for made, config in zip(models, (BALANCED, TrainingConfig(steps=3, batch=6)), strict=True):
        result = train(made, toy, config, show=False)
        found = evaluate(made, toy)
        batch = toy.rows(toy.validation_rows)
        plain = F.cross_entropy(made.eval()(batch.inputs).logits, batch.targets)
        assert found["loss"] == pytest.approx(float(plain.detach()), rel=1e-5)
        assert result.evaluation["loss"] == pytest.approx(found["loss"])
    assert not torch.equal(models[0].pool.head.weight, models[1].pool.head.weight)
    # what is saved and loaded knows no weights
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


def test_tasks_and_models_without_classes_refuse_weights() -> None:
    numbers = data(task="regress-series", classes=(), labels=LABELS[:, None].astype(np.float32))
    with pytest.raises(ConfigError, match="`class_weights` is balanced, but the task regress-seri"):
        weigh_classes(model(), numbers, BALANCED)
    with pytest.raises(ConfigError, match="a Linear on toy takes no weights of classes"):
        weigh_classes(torch.nn.Linear(2, 3), data(), BALANCED)
    weigh_classes(torch.nn.Linear(2, 3), data(), TrainingConfig())
