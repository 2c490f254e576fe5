"""The least memory that a training takes, known before anything is claimed."""

from __future__ import annotations

from typing import Any

from torch import nn

from everyformer.core.memory import check_memory
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.training.config import TrainingConfig
from everyformer.training.distributed import World

MOMENTS = 3
"""tensors beside each trained weight: its gradient and AdamW's two moments"""


def check_footprint(
    model: nn.Module, dataset: Dataset, config: TrainingConfig, world: World
) -> None:
    """Refuse sizes that this machine cannot hold, with both numbers.

    What is counted is surely needed: gradients and moments, the tokens of a batch and one vector of
    every token that a slice reads. A real step takes several times as much.

    Raises:
        ResourceError: it is more than what is free (on CPUs; others raise by themselves).
    """
    if world.device.type != "cpu":
        return
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    weights = sum(weight.numel() * weight.element_size() for weight in trained)
    check_memory(
        MOMENTS * weights, "training this model", "choose a smaller --width, --layers or tables"
    )
    if TASKS[dataset.task].translates:
        # its batches are as large as --data.tokens says, and no text is longer than what was read
        return
    options: Any = getattr(model, "config", None)
    width = getattr(options, "width", 1)
    tokens = config.batch * dataset.length * 2 * 8
    read = config.batch // (config.accumulate * world.size) * dataset.length * width * 4
    check_memory(
        MOMENTS * weights + tokens + read,
        f"a batch of {config.batch:,} sequences of {dataset.length:,} tokens",
        "choose a smaller --batch or --length, or a larger --training.accumulate",
    )
