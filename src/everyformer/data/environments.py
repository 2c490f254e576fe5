"""An environment as the data of the task `policy`: nothing is read, a policy plays in it.

What it gives a model is what observations and actions are, and how long an episode is at most; the
rows of a training are what the model does (`everyformer.training.rollouts`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import TaskName
from everyformer.core.wording import counted
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig, named_values
from everyformer.data.dataset import Dataset
from everyformer.data.episodes import as_states, shape_of
from everyformer.data.kind import Kind, Request
from everyformer.data.options import EnvironmentOptions
from everyformer.genes.config import DEFAULT_LENGTH
from everyformer.genes.model_options import EpisodeShape
from everyformer.rl.build import EnvironmentConfig, limit_of, make_environment, spaces_of
from everyformer.rl.collection import collect
from everyformer.rl.recipes import recipe
from everyformer.rl.spaces import Space
from everyformer.rl.trajectories import Trajectories

EPISODES = 20
"""that are played at random, at least, beside which a policy is measured"""
MANY, STEPS = 200, 20_000
"""that are played where they have no more steps in all, since the luck of a few would stay for
good: their seeds are always the same"""
SHOWN = 64
"""steps of an episode that models are looked into with"""


@dataclass(frozen=True, kw_only=True, eq=False)
class EnvironmentDataset(Dataset):
    """An environment that is played."""

    environment: EnvironmentConfig
    number: int
    """environments side by side"""
    shape: EpisodeShape
    """what a model must know of observations and actions"""
    observation_space: Space
    action_space: Space

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        raise DataError(f"{self.name} holds no rows: a policy learns from what it does there")

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """One episode of random actions, its first steps, to look into a policy with; a policy is
        measured by playing."""
        policy = recipe("random", self.environment)
        [episode] = collect(self.environment, policy, 1).episodes
        seen = as_states(self.observation_space, episode.observations[:SHOWN])
        done = episode.actions[:SHOWN]
        done = done.astype(np.int64 if self.action_space.discrete else np.float32)
        inputs, targets = torch.from_numpy(seen)[None, : len(done)], torch.from_numpy(done)[None]
        first = torch.zeros(inputs.shape[:2], dtype=torch.bool)
        first[:, 0] = True
        yield Batch(inputs=inputs, targets=targets, reset=first)

    @cached_property
    def random_returns(self) -> np.ndarray:
        """Returns of episodes with random actions."""

        def played(episodes: int) -> Trajectories:
            return collect(self.environment, recipe("random", self.environment), episodes)

        few = played(EPISODES)
        count = min(MANY, STEPS // max(1, int(few.lengths.mean())))
        return few.returns if count <= EPISODES else played(count).returns

    @property
    def shape_options(self) -> dict[str, Any]:
        return {"episodes": to_dict(self.shape)}

    def summary(self) -> dict[str, Any]:
        facts = {"environment": to_dict(self.environment), "number": self.number}
        return super().summary() | facts


class Environment(Kind):
    """An environment, which ``env`` names in place of a source."""

    name = "environment"
    reads = (EnvironmentOptions,)
    alone = ", which is played and not read"
    task: TaskName = "policy"

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return request.config.env is not None or request.said == cls.task

    @property
    def called(self) -> str:
        return self.config.env or self.name

    def check(self) -> None:
        if self.config.env is None:
            raise ConfigError(f"the task {self.task} plays in an environment: name it with --env")
        if self.task not in self.request.tasks:
            raise ConfigError(
                f"--env names an environment, which the task {self.request.word} cannot use; it is "
                f"for {self.task}"
            )
        if self.config.source != DataConfig.source:
            raise ConfigError(
                f"--env {self.config.env} is played in place of data, but --data "
                f"{self.config.source} is given too: leave one of them out"
            )
        super().check()

    def load(self) -> EnvironmentDataset:
        """The spaces of the environment, which is made once for them.

        Raises:
            Those of `everyformer.rl.make`.
        """
        assert self.config.env is not None
        options = named_values(self.config.env_options, "--data.env-options")
        environment = EnvironmentConfig(self.config.env, self.config.env_mask, options)
        trial = make_environment(environment)
        observed, acted = spaces_of(trial, environment.name)
        trial.close()
        limit, number = limit_of(environment), self.config.env_number
        many = f"{counted(number, 'environment')} side by side"
        return EnvironmentDataset(
            name=environment.name.rpartition("/")[2],
            task=self.task,
            kind="episodes",
            vocabulary=256,
            # of an episode every observation, its last one too
            length=(limit or DEFAULT_LENGTH) + 1,
            split=f"{many}, episodes of at most {limit:,} steps" if limit else many,
            fingerprint=digest(str(environment), number),
            environment=environment,
            number=number,
            shape=shape_of(observed, acted),
            observation_space=observed,
            action_space=acted,
        )
