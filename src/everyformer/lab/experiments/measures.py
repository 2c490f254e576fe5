"""Data, models and measures that experiments share."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.training.evaluate import evaluate


def load(task: str = "lm", **options: Any) -> Dataset:
    """Data of a task, by the fields of `DataConfig`."""
    return load_dataset(DataConfig(**options), task)


def model_for(data: Dataset, member: str, **options: Any) -> Model:
    """A model of ``member`` for the data; ``options`` are its sizes and those of its genes."""
    sizes: dict[str, Any] = {"vocabulary": data.vocabulary, "max_length": data.length}
    if data.does.pictures:
        sizes = {"image": data.image}
    if data.does.classifies:
        sizes["classes"] = len(data.classes)
    return create_model(member, data.task, **sizes, **options)


@torch.no_grad()
def scored_accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of scored targets (not -100) that are predicted."""
    guesses = model(inputs).logits.argmax(-1)
    return float((guesses == targets)[targets != -100].float().mean())


def accuracy(model: nn.Module, data: Dataset) -> float:
    """`scored_accuracy` on 256 held-out rows."""
    batch = next(iter(data.validation_batches(256, 256)))
    return scored_accuracy(model, batch.inputs, batch.targets)


def held_out(model: nn.Module, data: Dataset, measure: str, **options: Any) -> float:
    """An evaluation's loss, bits_per_byte, accuracy ... on the held-out part."""
    evaluation = evaluate(model, data, **options)
    assert evaluation is not None
    return float(evaluation[measure])


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    every = list(values)
    return sum(every) / len(every)


def joined(values: Mapping[Any, float], form: str) -> str:
    """Names and values, a comma between each two pairs."""
    return ", ".join(f"{name} {value:{form}}" for name, value in values.items())
