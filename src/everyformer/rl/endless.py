"""`EndlessRows`: environments side by side that are played on and on, one episode after the other.

Every episode has a seed of its own, from the run's seed and its number. So where every row stands
follows from the seed of its episode and from what was done in it: `arrays` says these, and
`restore` plays them once more.
"""

import warnings
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from everyformer.rl.build import EnvironmentConfig, make_vector
from everyformer.rl.collection import episode_seed

LEARNING = 1
"""beside a run's seed, so that episodes that are learned from are others than those of a data set
with the same seed"""
RECENT = 100
"""episodes whose mean return is told"""
CLOSE = 1e-6
LEFT = 1000
"""steps behind the oldest episode that are kept at most"""


class EndlessStep(NamedTuple):
    """Results of a step of all rows."""

    after: np.ndarray
    """(N, ...) what was seen behind it, where an episode ended its last observation"""
    rewards: np.ndarray
    """(N,)"""
    terminated: np.ndarray
    """(N,) bool"""
    truncated: np.ndarray
    """(N,) bool, not where it is terminated too"""


class EndlessRows:
    """``number`` rows of an environment; where an episode is over, the next begins."""

    def __init__(self, environment: EnvironmentConfig, number: int) -> None:
        self._vector: Any = make_vector(environment, number)
        self.environment, self.number = environment, number
        self.now: np.ndarray = np.zeros(0)
        """(N, ...) what is seen"""
        self.first = np.ones(number, bool)
        """(N,) whether it is the first observation of an episode"""
        self.finished = 0
        """episodes"""
        self.recent: deque[float] = deque(maxlen=RECENT)
        """returns of the last episodes"""
        self._seed, self._started = 0, number
        self._numbers = np.arange(number)
        self._seeds: list[int] = []
        self._totals = np.zeros(number)
        self._actions: list[np.ndarray] = []
        """of all rows, step by step"""
        self._starts = np.zeros(number, np.int64)
        """which of these steps is the first of each row's episode"""

    def begin(self, seed: int) -> None:
        """The first episodes begin."""
        self._seed = seed
        self._seeds = [self._seed_of(row) for row in range(self.number)]
        self.now = self._vector.reset(seed=self._seeds)[0]

    def step(self, actions: np.ndarray) -> EndlessStep:
        """Act in all rows."""
        after, rewards, terminated, truncated, _ = self._vector.step(actions)
        self._totals += rewards
        self._actions.append(actions)
        over: np.ndarray = terminated | truncated
        self.now, self.first = after, over
        if over.any():
            for row in np.flatnonzero(over).tolist():
                self.recent.append(float(self._totals[row]))
                self._next_episode(row)
            self.finished += int(over.sum())
            self._totals[over] = 0.0
            self.now = self._reset(over)
            if (past := int(self._starts.min())) > LEFT:
                del self._actions[:past]
                self._starts -= past
        return EndlessStep(after, rewards, terminated.copy(), truncated & ~terminated)

    def arrays(self) -> dict[str, np.ndarray]:
        """State of all rows, by which `restore` goes on."""
        episodes = [
            [actions[row] for actions in self._actions[start:]]
            for row, start in enumerate(self._starts)
        ]
        known = [action for done in episodes for action in done]
        return {
            "seed": np.array(self._seed),
            "begun": np.array(self._started),
            "finished": np.array(self.finished),
            "numbers": self._numbers.copy(),
            "totals": self._totals.copy(),
            "recent": np.array(self.recent, np.float64),
            "lengths": np.array([len(done) for done in episodes]),
            "actions": np.stack(known) if known else np.zeros(0),
            "now": np.array(self.now),
        }

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Stand where `arrays` said, by playing once more what was done in every row's episode.

        Where that leads elsewhere, since a seed does not determine the environment, a warning says
        so, and a new episode begins in that row.
        """
        self._seed, self._started = int(saved["seed"]), int(saved["begun"])
        self.finished = int(saved["finished"])
        self.recent.extend(saved["recent"].tolist())
        self._numbers, self._totals = saved["numbers"].copy(), saved["totals"].copy()
        self._seeds = [self._seed_of(row) for row in range(self.number)]
        lengths = saved["lengths"]
        ends = lengths.cumsum()
        episodes = [
            list(saved["actions"][end - length : end])
            for end, length in zip(ends, lengths, strict=True)
        ]
        self.first = lengths == 0
        self._replay(episodes)
        lost = ~np.isclose(self.now, saved["now"], CLOSE, CLOSE).reshape(self.number, -1).all(1)
        if lost.any():
            warnings.warn(
                f"{int(lost.sum())} of {self.number} environments do not come to where they stood "
                f"when they are played once more: {self.environment} does not follow from its seed "
                "alone. New episodes begin there, so the run goes on otherwise than it would have",
                stacklevel=2,
            )
            for row in np.flatnonzero(lost).tolist():
                self._next_episode(row)
            self._totals[lost] = 0.0
            self.first |= lost
            self.now = self._reset(lost)

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def _replay(self, episodes: list[list[np.ndarray]]) -> None:
        """Play all rows up to now; a row that has less to repeat plays anything before that, so
        that all arrive together."""
        self.now = self._vector.reset(seed=self._seeds)[0]
        longest = max(map(len, episodes))
        anything = [done[0] for done in episodes if done][:1]
        starts = np.array([longest - len(done) for done in episodes])
        self._starts = starts.copy()
        for t in range(longest):
            if (late := (starts == t) & (t > 0)).any():
                self._reset(late)
            chosen = np.stack(
                [
                    done[t - start] if t >= start else anything[0]
                    for done, start in zip(episodes, starts, strict=True)
                ]
            )
            self._actions.append(chosen)
            self.now, _, terminated, truncated, _ = self._vector.step(chosen)
            over = (terminated | truncated) & (starts > t + 1)
            early = (terminated | truncated) & (starts <= t)
            if (over | early).any():
                self.now = self._reset(over | early)
        if (fresh := (starts == longest) & (longest > 0)).any():
            self.now = self._reset(fresh)

    def _reset(self, where: np.ndarray) -> np.ndarray:
        options = {"reset_mask": where}
        observations: np.ndarray = self._vector.reset(seed=self._seeds, options=options)[0]
        return observations

    def _next_episode(self, row: int) -> None:
        self._numbers[row] = self._started
        self._started += 1
        self._starts[row] = len(self._actions)
        self._seeds[row] = self._seed_of(row)

    def _seed_of(self, row: int) -> int:
        return episode_seed((self._seed, LEARNING), int(self._numbers[row]))
