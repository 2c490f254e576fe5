"""Pixel models trained and measured: labels in every slice, exact bits a dimension of mixtures."""

import math
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.data import DataConfig, load_dataset
from everyformer.data.dataset import Dataset
from everyformer.training.evaluate import evaluate
from everyformer.training.parallel.world import World
from everyformer.training.step import backward


def digits(task: str = "pixels", **options: Any) -> Dataset:
    return load_dataset(DataConfig(source="digits", size=5, **options), task)


def model_of(data: Dataset, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1}
    made = ef.create_model(
        "attention", data.task, **data.model_options, **sizes, **options
    ).double()
    torch.nn.init.normal_(made.head.weight)
    return made


@pytest.mark.parametrize("task", ["pixels", "super-resolution"])
@pytest.mark.parametrize("order", ["raster", "blocks"])
def test_bits_per_dim_of_a_mixture_are_those_of_its_pictures_whatever_the_batch(order, task):
    data = digits(task)
    options = {"output": "mixture", "mixtures": 2, "order": order}
    options |= {"tile": (2, 2)} if order == "blocks" else {}
    model = model_of(data, pixels=options).eval()
    [whole] = data.validation_batches(30, 30)
    each = model(whole.inputs, targets=whole.targets).each.mean(1) / math.log(2)
    half = 2.045229642132703 * each.std().item() / math.sqrt(30)
    for size in (7, 30):
        found = evaluate(model, data, batch=size, limit=30)
        assert found["bits_per_dim"] == pytest.approx(each.mean().item(), rel=1e-9)
        around = [each.mean().item() - half, each.mean().item() + half]
        assert found["bits_per_dim_interval"] == pytest.approx(around, rel=1e-5)
        assert not {"accuracy", "accuracy_interval", "top5"} & set(found)


@pytest.mark.parametrize("output", ["categorical", "mixture"])
@pytest.mark.parametrize("task", ["pixels", "super-resolution"])
def test_slices_of_a_batch_have_its_gradient_labels_included(task, output):
    data = digits(task, labels=True)
    batch = data.train_batch(0, 6, 0)
    world = World(torch.device("cpu"))
    gradients = []
    for slices in (1, 3):
        chosen = {"mixtures": 2} if output == "mixture" else {}
        model = model_of(data, pixels={"output": output, **chosen})
        backward(model, batch, world, slices=slices)
        assert model.classes.weight.grad.abs().sum() > 0
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
