"""`Trajectories`: episodes of one environment with what must be known to use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from everyformer.core.bounds import Part
from everyformer.core.config import converted
from everyformer.core.errors import DataError
from everyformer.data.episodes.episode import Episode
from everyformer.data.episodes.spaces import Space

BINS = 20
"""of the histogram of returns"""


@dataclass(frozen=True)
class Statistics:
    """Numbers that describe a data set; deviations are those of the population."""

    episodes: int
    steps: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    histogram: tuple[int, ...]
    """episodes by their return, in parts of equal width"""
    edges: tuple[float, ...]
    """of the parts, one more than there are parts"""
    observation_mean: tuple[float, ...] | None
    """of each number of a vector, over the T observations that were acted on; None of others"""
    observation_std: tuple[float, ...] | None


@dataclass(frozen=True, repr=False)
class Trajectories:
    """Episodes of one environment.

    Raises:
        DataError: there are none, or one does not fit the spaces; says which.
    """

    episodes: Sequence[Episode]
    observation_space: Space
    action_space: Space
    environment: str | None = None
    """its name; None where it is not known"""
    recipe: str = ""
    """how they came to be, in a sentence"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "episodes", tuple(self.episodes))
        if not self.episodes:
            raise DataError("the data set holds no episode: it needs one at least")
        for number, episode in enumerate(self.episodes):
            try:
                episode.require(self.observation_space, self.action_space)
            except DataError as error:
                raise DataError(f"episode {number}: {error}") from error

    def __len__(self) -> int:
        """Episodes."""
        return len(self.episodes)

    def __repr__(self) -> str:
        facts, of = self.statistics, self.environment or "an unknown environment"
        return (
            f"Trajectories({facts.episodes:,} episodes, {facts.steps:,} steps of {of}, return "
            f"{facts.return_mean:g} ± {facts.return_std:g})"
        )

    @cached_property
    def lengths(self) -> np.ndarray:
        """Steps of each episode, (episodes,)."""
        return np.array([len(episode) for episode in self.episodes])

    @cached_property
    def returns(self) -> np.ndarray:
        """The sum of the rewards of each episode, (episodes,) float64."""
        return np.array([episode.total for episode in self.episodes])

    @cached_property
    def statistics(self) -> Statistics:
        """Numbers that describe them."""
        counts, edges = np.histogram(self.returns, BINS)
        mean = std = None
        if not self.observation_space.discrete and len(self.observation_space.shape) == 1:
            seen = np.concatenate([episode.observations[:-1] for episode in self.episodes])
            mean = tuple(seen.mean(0, dtype=np.float64).tolist())
            std = tuple(seen.std(0, dtype=np.float64).tolist())
        return Statistics(
            len(self), int(self.lengths.sum()), float(self.returns.mean()),
            float(self.returns.std()), float(self.returns.min()), float(self.returns.max()),
            tuple(counts.tolist()), tuple(edges.tolist()), mean, std,
        )  # fmt: skip

    def best(self, share: float) -> Trajectories:
        """The episodes of the highest returns that together have at most ``share`` of all steps,
        in their order, and one at least: whole ones from the top until the next does not fit."""
        budget = converted(Part, share, "share") * self.lengths.sum()
        order = np.argsort(-self.returns, kind="stable")
        within = int((np.cumsum(self.lengths[order]) <= budget).sum())
        chosen = sorted(order[: max(within, 1)])
        return self._with([self.episodes[number] for number in chosen], f"the best {share:g} of it")

    def delayed(self) -> Trajectories:
        """Episodes with the whole return as the reward of the last step."""
        late = []
        for episode in self.episodes:
            rewards = np.zeros(len(episode))
            rewards[-1] = episode.total
            late.append(dataclasses.replace(episode, rewards=rewards))
        return self._with(late, "rewards delayed to the end")

    def _with(self, episodes: Sequence[Episode], change: str) -> Trajectories:
        recipe = "; ".join(filter(None, (self.recipe, change)))
        return dataclasses.replace(self, episodes=episodes, recipe=recipe)
