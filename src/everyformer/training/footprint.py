"""The least memory that a training takes, known before anything is claimed."""

from typing import Any

import torch
from torch import nn

from everyformer.core.errors import ConfigError
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.world import World
from sequence_laws.memory import check_memory

MOMENTS = 3
"""tensors beside each trained weight: its gradient and AdamW's two moments"""


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
    rows = own // config.accumulate
    check_memory(
        MOMENTS * weights + own * dataset.length * 16 + vectors(model, rows, dataset),
        f"a batch of {own:,} sequences of {dataset.length:,} tokens",
        "choose a smaller `batch` or `length`, or a larger `training.accumulate`",
    )


def vectors(model: nn.Module, rows: int, dataset: Dataset) -> int:
    """Bytes of one vector of every token in so many sequences."""
    options: Any = getattr(model, "config", None)
    width: int = getattr(options, "width", 1)
    return rows * dataset.length * width * 4


def check_reading(model: nn.Module, dataset: TextDataset, rows: int, device: torch.device) -> None:
    """Refuse so many windows of a text at once, as `check_footprint` does."""
    if device.type == "cpu":
        check_memory(
            rows * dataset.length * 16 + vectors(model, rows, dataset),
            f"reading {rows:,} windows of {dataset.length:,} tokens at once",
            "choose a smaller `batch` or `streams`",
        )
