"""Returns of played episodes (`played`); and `play_policy`, episodes of a policy as it is now."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from everyformer.core.devices import widest
from everyformer.core.errors import DataError
from everyformer.core.state import StackState
from everyformer.data.episodes import as_states, shape_of
from everyformer.models.base import evaluating
from everyformer.models.policy import PolicyModel
from everyformer.rl.build import EnvironmentConfig, make_environment, spaces_of
from everyformer.rl.collection import PARALLEL, collect
from everyformer.rl.policy import Policy, RowGenerators
from everyformer.rl.spaces import Space
from everyformer.rl.trajectories import Trajectories
from everyformer.training.measures import ratio, wilson

EPISODES = 20
"""that are played where nothing is said"""
REFERENCE = "reference_returns"
"""the entry of an environment's ``metadata`` that holds the returns of random and of good play"""


class ActingPolicy(Policy):
    """A model of the task `policy` that plays.

    Args:
        observation_space, action_space: of the environment that it plays in.
        temperature: divides logits, multiplies deviations; 0 takes the likeliest action.

    Raises:
        DataError: observations or actions are of another form than those that it learned from.
    """

    def __init__(
        self,
        model: PolicyModel,
        observation_space: Space,
        action_space: Space,
        temperature: float = 1.0,
    ) -> None:
        if fault := model.config.episodes.misfit(shape_of(observation_space, action_space)):
            raise DataError(f"{fault}: it is of another environment")
        self.model, self.space, self.action_space = model, observation_space, action_space
        self.temperature = temperature
        self.recipe = f"a trained {model.config.member}"
        self._generators = RowGenerators()
        self._state: StackState | None = None
        self._first = np.zeros(0, bool)

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        self._generators.reset(where, seeds)
        weight = next(self.model.parameters())
        if len(where) != len(self._first):
            self._first = np.zeros(len(where), bool)
            # states differ between training and evaluation
            with evaluating(self.model):
                self._state = self.model.init_state(
                    len(where), device=weight.device, dtype=weight.dtype
                )
        self._first = self._first | where

    def act(self, observations: np.ndarray) -> np.ndarray:
        assert self._state is not None
        device = next(self.model.parameters()).device
        states = torch.from_numpy(as_states(self.space, np.asarray(observations))).to(device)
        first = torch.from_numpy(self._first).to(device)
        with torch.inference_mode(), evaluating(self.model):
            outputs, _, self._state = self.model.act(states, self._state, first)
            noise = torch.from_numpy(self._noise()).to(device, widest(device))
            done = self.model.chosen(outputs, noise, self.temperature).cpu().numpy()
        self._first = np.zeros(len(first), bool)
        if not self.action_space.discrete:
            done = np.clip(done, *self.action_space.bounds())
        return done.astype(self.action_space.dtype)

    def _noise(self) -> np.ndarray:
        rows, size = self._generators.rows, self.action_space.size
        if self.action_space.discrete:
            return np.array([random.random() for random in rows])
        return np.stack([random.standard_normal(size) for random in rows])


def play_policy(
    model: PolicyModel,
    environment: EnvironmentConfig,
    episodes: int,
    seed: int = 0,
    *,
    temperature: float = 1.0,
    parallel: int = PARALLEL,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectories:
    """Episodes of ``model``; arguments as of `everyformer.rl.collect`.

    Raises:
        DataError: the environment is of another kind than the model's.
        Those of `everyformer.rl.make`.
    """
    trial = make_environment(environment)
    spaces = spaces_of(trial, environment.name)
    trial.close()
    policy = ActingPolicy(model, *spaces, temperature)
    return collect(environment, policy, episodes, seed, parallel=parallel, progress=progress)


def played(episodes: Trajectories) -> dict[str, Any]:
    """Results of episodes: ``return`` and ``steps``, means over episodes with Student's
    95% intervals; ``success``, where it is told, with Wilson's; ``normalised``, the return as a
    share of the way from random to good play, where the environment says how they do.

    ``return_ends``, beyond which no interval goes: lowest and highest, or None of one episode's.
    """
    values = {"return": episodes.returns, "steps": episodes.lengths.astype(float)}
    summary: dict[str, Any] = {"episodes": len(episodes)}
    for name, each in values.items():
        mean, interval = mean_of(each)
        summary |= {name: mean, f"{name}_interval": interval}
    returns = episodes.returns
    ends = (float(returns.min()), float(returns.max()))
    shared = [end if (returns == end).sum() > 1 else None for end in ends]
    summary |= {"return_ends": shared, "return_interval": cut(summary["return_interval"], [shared])}
    if episodes.success is not None:
        summary["success"] = episodes.success
        summary["success_interval"] = wilson(episodes.success * len(episodes), len(episodes))
    known = reference(episodes.environment)
    if known is not None:
        low, high = known
        summary["normalised"] = (summary["return"] - low) / (high - low)
        around = summary["return_interval"]
        summary["normalised_interval"] = around and [(end - low) / (high - low) for end in around]
    return summary


def mean_of(values: np.ndarray) -> tuple[float, list[float] | None]:
    """The mean of a number of episodes, and Student's 95% interval of it."""
    n = float(len(values))
    mean, interval = ratio(n, n, n, values.sum(), np.square(values).sum(), values.sum())
    return float(mean), interval


def cut(interval: list[float] | None, ends: Sequence[Sequence[float | None]]) -> Any:
    """An interval of mean returns within the ``return_ends`` of all that were played; an end that
    is not known of each is none."""
    lows, highs = zip(*ends, strict=True)
    low = -math.inf if None in lows else min(lows)
    high = math.inf if None in highs else max(highs)
    return interval and [max(low, interval[0]), min(high, interval[1])]


def reference(environment: EnvironmentConfig | None) -> tuple[float, float] | None:
    """The mean returns of random and of good play, as the environment with its usual options says
    in its ``metadata``; None where it does not."""
    if environment is None or environment.options:
        return None
    trial = make_environment(environment)
    result = trial.metadata.get(REFERENCE)
    trial.close()
    return None if result is None else (float(result[0]), float(result[1]))
