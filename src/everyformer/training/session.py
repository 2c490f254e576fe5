"""`Session`: what one session of a run prepares once, and its updates and evaluations share."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.seeds import seed_of
from everyformer.data.dataset import Dataset
from everyformer.training.carry import carry_of
from everyformer.training.checkpoint import CheckpointParts, TrainingState
from everyformer.training.config import Precision, TrainingConfig
from everyformer.training.operations import Operations
from everyformer.training.optimiser import WeightAverage, build_optimiser
from everyformer.training.parallel.world import World
from everyformer.training.run import Records


class Session:
    """A model on its device, with the state of its run; after `prepare`, ready for updates.

    Raises:
        ConfigError: activations of a model without blocks are to be recomputed.
    """

    precision: Precision
    module: nn.Module
    """the model as `World.wrap` gives it back"""
    compiled: Any
    """the same, compiled if that is set"""
    optimiser: torch.optim.Optimizer
    average: WeightAverage | None
    operations: Operations

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        config: TrainingConfig,
        world: World,
        records: Records,
    ) -> None:
        self.model = model.to(world.device).train()
        self.config, self.world, self.records = config, world, records
        if config.checkpoint_activations:
            enable: Any = getattr(model, "enable_checkpointing", None)
            if enable is None:
                raise ConfigError("`checkpoint_activations` is set, but this model has no blocks")
            enable()
        known: Any = getattr(model, "config", None)
        # the order of the data is that of all, what is dropped that of a twin
        self.seed = seed_of(config.seed, getattr(known, "member", ""))
        self.carry = carry_of(model, dataset, world)
        self.state = TrainingState()

    def find(self, values: dict[str, Any]) -> None:
        """Take the state of the newest whole checkpoint, of a run with the config ``values``."""
        known: Any = getattr(self.model, "config", None)
        kind = type(known) if isinstance(known, Options) else Options
        self.records.find(self.state, values, kind)

    def prepare(self, precision: Precision) -> None:
        """Wrap the model, make its optimiser and fill that from what was found."""
        model, config, state, records = self.model, self.config, self.state, self.records
        self.precision = precision
        # from here on weights may be split, and other tensors
        self.module = self.world.wrap(model)
        self.compiled = torch.compile(self.module) if config.compile else self.module
        self.optimiser = build_optimiser(model, config)
        self.average = None if config.ema is None else WeightAverage(model, config.ema)
        self.parts = CheckpointParts(model, self.optimiser, self.average, self.carry)
        records.fill(self.parts)
        kept = records.path is not None
        self.operations = Operations(state, self.parts, self.world, config.budget[0], kept)

    def averaged(self) -> AbstractContextManager[None]:
        """The model holds its averaged weights, where there are any, in the block."""
        return nullcontext() if self.average is None else self.average.applied(self.model)

    @property
    def done(self) -> float:
        """Share of the budget spent; 1 where the accuracy it was to reach is reached."""
        state, goal = self.state, self.config.stop_at
        found = state.evaluation if state.evaluated else None
        if goal is not None and found is not None and found["accuracy"] >= goal:
            return 1.0
        kind, amount = self.config.budget
        return float(getattr(state, kind) / amount)
