"""Checks of a training's config against its model, its data and this machine, before it begins."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from everyformer.core.errors import ConfigError
from everyformer.core.modules import memories_of
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.world import World
from sequence_laws.memory import check_memory

MOMENTS = 3
"""tensors beside each trained weight: its gradient and AdamW's two moments"""


def check_training(
    model: nn.Module, dataset: Dataset, config: TrainingConfig, world: World
) -> None:
    """Refuse what does not go together or fit here; the model is given its weights of classes.

    Raises:
        ConfigError: says why, and what to change.
        ResourceError: see `check_footprint`.
    """
    check_stages(config.stages, model, dataset)
    weigh_classes(model, dataset, config)
    check_footprint(model, dataset, config, world)


def check_stages(parts: Sequence[float], model: nn.Module, dataset: Dataset) -> None:
    """Refuse stages that this model and data cannot have.

    Raises:
        ConfigError: says why, and what to change.
    """
    if len(parts) < 2:
        return
    if dataset.running_text is None or not dataset.does.continues:
        raise ConfigError(
            f"`stages` are of language models on running text, not of {dataset.task} on "
            f"{dataset.name}: leave them out"
        )
    if memories_of(model):
        raise ConfigError(
            "`stages` cut rows into pieces, but this model carries a memory from piece to piece: "
            "leave `stages` or the memory out"
        )
    shortest = 2 ** (len(parts) - 1)
    if dataset.length % shortest:
        raise ConfigError(
            f"{len(parts)} `stages` begin with texts of a {shortest}th, but "
            f"`length={dataset.length}` is no multiple of {shortest}: give one that is"
        )


def weigh_classes(model: nn.Module, dataset: Dataset, config: TrainingConfig) -> None:
    """Give the model the weights of the classes that ``config`` asks for.

    Raises:
        ConfigError: the task has no classes, or the model takes no weights.
    """
    config.check_task(dataset.does)
    weigh: Any = getattr(model, "weigh_classes", None)
    if config.class_weights is not None:
        weights = dataset.balanced_weights
        if weigh is None or weights is None:
            raise ConfigError(
                f"`class_weights` is {config.class_weights}, but a {type(model).__name__} on "
                f"{dataset.name} takes no weights of classes: leave it out"
            )
        weigh(weights.tolist())
    elif weigh is not None:
        weigh(None)


def check_footprint(
    model: nn.Module, dataset: Dataset, config: TrainingConfig, world: World
) -> None:
    """Refuse sizes that this machine cannot hold, with both numbers.

    What is counted is surely needed: gradients and moments, the tokens of a batch and one vector of
    every token that a slice reads. A real step takes several times as much.

    Raises:
        ConfigError: a process has fewer rows than slices.
        ResourceError: it is more than what is free (on CPUs; others raise by themselves).
    """
    if config.batch < config.accumulate * world.size:
        raise ConfigError(
            f"`batch` ({config.batch}) has fewer sequences than {world.size} processes times "
            f"`accumulate` ({config.accumulate}) need: raise one or lower the other"
        )
    if world.device.type != "cpu":
        return
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    weights = sum(weight.numel() * weight.element_size() for weight in trained) // world.holders
    check_memory(
        MOMENTS * weights, "training this model", "choose a smaller `width`, `layers` or tables"
    )
    if dataset.does.translates:
        # its batches are as large as --data.tokens says, and no text is longer than what was read
        return
    own = config.batch // world.size
    read = batch_bytes(model, dataset, own, own // config.accumulate)
    check_memory(
        MOMENTS * weights + read,
        f"a batch of {own:,} sequences of {dataset.length:,} tokens",
        "choose a smaller `batch` or `length`, or a larger `training.accumulate`",
    )


def batch_bytes(model: nn.Module, dataset: Dataset, rows: int, read: int) -> int:
    """Bytes of the tokens of so many sequences, and of one vector of every token of those ``read``
    at once."""
    width: int = getattr(getattr(model, "config", None), "width", 1)
    return dataset.length * (rows * 16 + read * width * 4)


def check_reading(model: nn.Module, dataset: TextDataset, rows: int, device: torch.device) -> None:
    """Refuse so many windows of a text at once, as `check_footprint` does."""
    if device.type == "cpu":
        needed = batch_bytes(model, dataset, rows, rows)
        check_memory(
            needed,
            f"reading {rows:,} windows of {dataset.length:,} tokens at once",
            "choose a smaller `batch` or `streams`",
        )
