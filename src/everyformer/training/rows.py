"""Where the rows of a step come from: the data, or what a training carries from step to step."""

from __future__ import annotations

from torch import nn

from everyformer.core.errors import ConfigError
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.data.environments import EnvironmentDataset
from everyformer.data.text import TextDataset
from everyformer.genes.memory.base import memories_of
from everyformer.models.policy import PolicyModel
from everyformer.training.carry import Carry, TextCarry
from everyformer.training.config import TrainingConfig
from everyformer.training.distributed import World
from everyformer.training.rollouts import Rollouts


def carry_of(
    model: nn.Module, dataset: Dataset, config: TrainingConfig, world: World
) -> Carry | None:
    """What is carried when the model learns from this data; None where nothing is.

    Raises:
        ConfigError: several processes, each of which would have to save what it carries; options
            that a policy cannot be trained with.
    """
    if isinstance(dataset, EnvironmentDataset):
        if world.size > 1:
            raise ConfigError(
                f"a policy is trained by one process, not {world.size}: start it without torchrun"
            )
        if config.precision != "float32":
            raise ConfigError(
                f"a policy learns in float32, as it acts, not in {config.precision}: leave out "
                "--precision"
            )
        assert isinstance(model, PolicyModel)
        return Rollouts(model, dataset, config.batch)
    if not memories_of(model) or not isinstance(dataset, TextDataset):
        return None
    if world.size > 1:
        raise ConfigError(
            f"a model with a memory is trained by one process, not {world.size}: each row's memory "
            "would lie with another one. Start it without torchrun"
        )
    return TextCarry(model)


def training_batch(dataset: Dataset, carry: Carry | None, step: int, size: int, seed: int) -> Batch:
    """The rows of a step: a function of its number, or what is carried says so."""
    if carry is None:
        return dataset.train_batch(step, size, seed)
    return carry.batch(dataset, step, size, seed)
