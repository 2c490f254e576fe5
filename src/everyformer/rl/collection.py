"""`collect`: episodes of an environment, played by a policy, several side by side."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from everyformer.core.bounds import Count, Seed
from everyformer.core.config import converted
from everyformer.core.errors import ShapeError
from everyformer.rl.build import (
    LIMIT,
    EnvironmentConfig,
    limit_of,
    make_environment,
    make_vector,
    spaces_of,
    without_defaults,
)
from everyformer.rl.episode import SUCCESS, Episode
from everyformer.rl.policy import Policy
from everyformer.rl.spaces import Space
from everyformer.rl.trajectories import Trajectories

PARALLEL = 8
"""environments side by side"""
_Recording = tuple[list[np.ndarray], list[np.ndarray], list[float]]
"""observations, actions and rewards of an episode while it is played"""


def episode_seed(seed: tuple[int, ...], number: int) -> int:
    """The seed of the episode of this number among those that ``seed`` stands for."""
    return int(np.random.SeedSequence((*seed, number)).generate_state(1)[0])


def collect(
    environment: EnvironmentConfig | str,
    policy: Policy,
    episodes: int,
    seed: int = 0,
    *,
    parallel: int = PARALLEL,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectories:
    """Play ``episodes`` episodes and keep them, in the order of their seeds.

    Where the environment tells ``info["success"]``, it is kept with the episode. A warning says how
    many episodes were cut at `LIMIT` steps, since the environment sets no limit.

    Every episode has a seed of its own, from ``seed`` and its number, for the environment and the
    policy: the data are the same however many are played at once, as far as the policy's
    arithmetic for a row does not depend on the rows beside it.

    Args:
        environment: its name, or its description.
        parallel: environments side by side, at most.
        progress: told after every step how many episodes are finished, and how many steps have
            been played.

    Raises:
        ConfigError: a number that is not positive.
        ShapeError: the policy gives actions that the environment does not have.
        Those of `everyformer.rl.build.make`.
    """
    if isinstance(environment, str):
        environment = EnvironmentConfig(environment)
    count = converted(Count, episodes, "--episodes")
    rows = min(converted(Count, parallel, "--parallel"), count)
    first = converted(Seed, seed, "--seed")
    seeds = np.array([episode_seed((first,), number) for number in range(count)])
    observed, actions, visible = _spaces(environment)
    whole = EnvironmentConfig(environment.name, (), environment.options)
    vector: Any = make_vector(whole, rows)
    try:
        table = _Table(policy, seeds, rows, visible)
        table.begin(np.ones(rows, bool), vector.reset(seed=table.row_seeds())[0])
        while not table.complete:
            chosen = np.asarray(policy.act(table.seen()))
            if fault := actions.misfit(chosen, rows):
                raise ShapeError(f"the actions of the policy for {environment.name} {fault}")
            over = table.add(chosen, *vector.step(chosen))
            if progress is not None:
                progress(len(table.finished), table.steps)
            if over.any() and not table.complete:
                options = {"reset_mask": over}
                table.begin(over, vector.reset(seed=table.row_seeds(), options=options)[0])
    finally:
        vector.close()
    in_order = [table.finished[number] for number in range(count)]
    _say_cut(environment, in_order)
    known = without_defaults(environment)
    return Trajectories(in_order, observed, actions, known, policy.recipe, seed)


def _say_cut(environment: EnvironmentConfig, episodes: list[Episode]) -> None:
    """Say so where episodes would have gone on, had they not been cut by a limit of ours."""
    cut = sum(len(each) >= LIMIT and bool(each.truncations[-1]) for each in episodes)
    if cut and limit_of(environment) is None:
        warnings.warn(
            f"{cut} of {len(episodes)} episodes of {environment.name} were cut after {LIMIT:,} "
            "steps, since it sets no limit itself: --env.max-episode-steps gives another",
            stacklevel=3,
        )


def _spaces(environment: EnvironmentConfig) -> tuple[Space, Space, np.ndarray | None]:
    """Spaces of what is kept, and the entries of observations that are, if not all."""
    trial = make_environment(environment)
    visible = trial.get_wrapper_attr("visible") if environment.mask else None
    trial.close()
    return (*spaces_of(trial, environment.name), visible)


class _Table:
    """Episodes of the rows that play, and their recordings.

    When no episode is left to begin, a row plays its last one again, and that is not kept.
    """

    def __init__(
        self, policy: Policy, seeds: np.ndarray, rows: int, visible: np.ndarray | None
    ) -> None:
        self._policy, self._seeds, self._visible = policy, seeds, visible
        self._numbers = np.arange(rows)
        """the episode of each row"""
        self._recording = np.ones(rows, bool)
        self._started = rows
        self._now: np.ndarray = np.zeros(0)
        """what all rows see, hidden entries included"""
        self._rows: list[_Recording] = [([], [], []) for _ in range(rows)]
        self.finished: dict[int, Episode] = {}
        """by number"""
        self.steps = 0

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self._seeds)

    def row_seeds(self) -> list[int]:
        """The seed of each row's episode."""
        return [int(seed) for seed in self._seeds[self._numbers]]

    def seen(self) -> np.ndarray:
        """Observations that the policy sees."""
        return self._now if self._policy.unmasked else self._entries(self._now)

    def begin(self, where: np.ndarray, observations: np.ndarray) -> None:
        """Episodes begin in these rows, with these observations."""
        self._now = observations
        self._policy.reset(where, self._numbers.copy(), self._seeds[self._numbers])
        entries = self._entries(observations)
        for row in np.flatnonzero(where & self._recording):
            self._rows[row] = [entries[row]], [], []

    def add(
        self,
        actions: np.ndarray,
        observations: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: dict[str, Any],
    ) -> np.ndarray:
        """Take a step of all rows in; give those whose episode is over, which get the next one."""
        self._now = observations
        self._policy.reward(rewards)
        entries = self._entries(observations)
        self.steps += int(self._recording.sum())
        for row in np.flatnonzero(self._recording):
            recording = self._rows[row]
            recording[0].append(entries[row])
            recording[1].append(actions[row])
            recording[2].append(rewards[row])
        over: np.ndarray = terminated | truncated
        for row in np.flatnonzero(over):
            number = int(self._numbers[row])
            if self._recording[row]:
                facts = self._policy.facts(number)
                if SUCCESS in infos:
                    facts = facts | {SUCCESS: float(infos[SUCCESS][row])}
                seen, acted, paid = (np.array(values) for values in self._rows[row])
                last = np.arange(len(acted)) == len(acted) - 1
                ended, cut = last & terminated[row], last & truncated[row]
                self.finished[number] = Episode(
                    seen, acted, paid, ended, cut, int(self._seeds[number]), facts
                )
            self._recording[row] = self._started < len(self._seeds)
            if self._recording[row]:
                self._numbers[row] = self._started
                self._started += 1
        return over

    def _entries(self, observations: np.ndarray) -> np.ndarray:
        return observations if self._visible is None else observations[:, self._visible]
