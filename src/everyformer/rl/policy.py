"""`Policy`: players of environments; random actions, and those of another policy with noise.

A policy plays several episodes at once, one a row. `reset` tells it which rows begin, `act` gives
the actions of all rows, `reward` tells what they brought. Anything with these three is a policy:
the body of a trained model keeps its `State` by row, resets it by the same ``where``, and draws
from a generator a row, seeded as its episode is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from everyformer.core.errors import UnsupportedError
from everyformer.rl.spaces import Space

STREAM = 1
"""beside an episode's seed, so that a policy draws other numbers than the environment"""


class Policy(ABC):
    """Base of what chooses actions, row by row, from observations and a memory of its own.

    The actions of a row must follow from the seed and the observations of its episode alone,
    whichever rows there are beside it: then data do not depend on how many are played at once.
    """

    recipe: str = "a policy that was not described"
    """what it does, in a sentence that data sets keep"""
    unmasked: bool = False
    """whether it sees the entries of observations that are hidden from others"""

    @abstractmethod
    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        """New episodes begin in some of the N rows. The first call is of all rows, and so is one
        with another N than before: others are played now.

        Args:
            where: booleans (N,), the rows in question.
            episodes: (N,), the number of each row's episode in the data set.
            seeds: (N,), that of each row's episode.
        """

    @abstractmethod
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Actions (N,) or (N, numbers) for observations (N, ...)."""

    def reward(self, rewards: np.ndarray) -> None:  # noqa: B027 (a hook)
        """Take the rewards (N,) of the last actions, for policies that act by returns-to-go."""

    def facts(self, episode: int) -> dict[str, float]:
        """Numbers to keep with an episode: how noisy it was, which return was asked for."""
        return {}


class RowGenerators:
    """A random generator a row, which begins anew with the episode's seed."""

    def __init__(self) -> None:
        self.rows: list[np.random.Generator] = []

    def reset(self, where: np.ndarray, seeds: np.ndarray) -> None:
        """Seed the rows in question."""
        if len(self.rows) != len(where):
            self.rows = [np.random.default_rng(0)] * len(where)
        for row in np.flatnonzero(where):
            self.rows[row] = np.random.default_rng((int(seeds[row]), STREAM))


Draw = Callable[[np.random.Generator, np.ndarray], object]
"""a random action, from a generator and the observation of one row"""


def uniform(space: Space) -> Draw:
    """Draws all actions of a space alike.

    Raises:
        UnsupportedError: a box without ends.
    """
    if space.discrete:
        return lambda random, _: random.integers(space.size)
    low, high = space.bounds()
    if not np.isfinite([low, high]).all():
        raise UnsupportedError(
            "actions without bounds cannot be drawn at random: give the environment a Box with a "
            "lowest and a highest value"
        )
    return lambda random, _: random.uniform(low, high)


class NoisyPolicy(Policy):
    """Another policy's actions, each replaced by a random one with an episode's probability.

    Args:
        base: the other policy; None where every action is random.
        space: of the actions.
        draw: a random action.
        noise: the probability, by the episode's number.
        recipe: all of this in a sentence.
    """

    unmasked = True

    def __init__(
        self,
        base: Policy | None,
        space: Space,
        draw: Draw,
        noise: Callable[[int], float],
        recipe: str,
    ) -> None:
        self.base, self.draw, self.noise, self.recipe = base, draw, noise, recipe
        self.space = space
        self._generators = RowGenerators()
        self._levels = np.zeros(0)

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        self._generators.reset(where, seeds)
        if len(self._levels) != len(where):
            self._levels = np.zeros(len(where))
        for row in np.flatnonzero(where):
            self._levels[row] = self.noise(int(episodes[row]))
        if self.base is not None:
            self.base.reset(where, episodes, seeds)

    def act(self, observations: np.ndarray) -> np.ndarray:
        if self.base is None:
            actions = np.zeros((len(observations), *self.space.shape), self.space.dtype)
        else:
            actions = np.array(self.base.act(observations), self.space.dtype)
        for row, random in enumerate(self._generators.rows):
            if random.random() < self._levels[row]:
                actions[row] = self.draw(random, observations[row])
        return actions

    def facts(self, episode: int) -> dict[str, float]:
        return {"noise": float(self.noise(episode))}
