"""`Episode`: observations, actions and rewards from a start to an end; and returns-to-go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.episodes.spaces import LARGEST, Space, readable

MUST_BE = f"numbers must be finite, and at most {LARGEST:.1e} in size"
NAMES = ("observations", "actions", "rewards", "terminations", "truncations")
"""the arrays of an episode, by which files hold them"""


@dataclass(frozen=True, eq=False, repr=False)
class Episode:
    """T actions between T + 1 observations. Arrays are checked, and must not be changed.

    Raises:
        DataError: arrays that contradict one another, hold what is no number, or are empty.
    """

    observations: np.ndarray
    """(T + 1, ...), the last one being where the episode ended"""
    actions: np.ndarray
    """(T,) whole numbers, or (T, numbers)"""
    rewards: np.ndarray
    """(T,) float64"""
    terminations: np.ndarray
    """(T,) booleans: the task ended with this step"""
    truncations: np.ndarray
    """(T,) booleans: a limit of time cut the episode here. An episode at whose last step neither is
    set was cut by whoever recorded it."""

    def __post_init__(self) -> None:
        for name in NAMES:
            object.__setattr__(self, name, _numbers(getattr(self, name), name))
        if not len(self.actions):
            raise DataError("the episode is empty: it needs one action at least")
        if len(self.observations) != len(self) + 1:
            raise DataError(
                f"there are {len(self.observations)} observations and {len(self)} actions: there "
                "must be one observation more than actions, the last being where the episode ended"
            )
        for name in NAMES[2:]:
            if getattr(self, name).shape != (len(self),):
                raise DataError(
                    f"{name} has the shape {getattr(self, name).shape}: there must be one number "
                    f"for each of the {len(self)} actions"
                )
        object.__setattr__(self, "rewards", self.rewards.astype(np.float64))
        sums = returns_to_go(self.rewards)
        if not (fine := readable(sums)).all():
            step = int(fine.argmin())
            raise DataError(f"the rewards from step {step} on add up to {sums[step]:g}: {MUST_BE}")
        for name in NAMES[3:]:
            object.__setattr__(self, name, _booleans(getattr(self, name), name))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """An episode of arrays by name; the inverse of `arrays`."""
        return cls(*(arrays[name] for name in NAMES))

    def require(self, observation_space: Space, action_space: Space) -> None:
        """Refuse arrays that are not of these spaces.

        Raises:
            DataError: says which, and why.
        """
        for name, space in (("observations", observation_space), ("actions", action_space)):
            if fault := space.misfit(getattr(self, name), row="step"):
                raise DataError(f"the {name} {fault}")

    def __len__(self) -> int:
        """Steps."""
        return len(self.actions)

    def __repr__(self) -> str:
        return f"Episode({len(self)} steps, return {self.total:g})"

    def __eq__(self, other: object) -> bool:
        """True where all is equal, types of numbers included."""
        return isinstance(other, Episode) and all(
            _same(getattr(self, name), getattr(other, name)) for name in NAMES
        )

    @property
    def total(self) -> float:
        """The return: the sum of all rewards."""
        return float(self.rewards.sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """The five arrays by name."""
        return {name: getattr(self, name) for name in NAMES}


def returns_to_go(rewards: np.ndarray) -> np.ndarray:
    """Rewards from each step to the end, without discount: (T,) -> (T,) float64.

    Of a whole episode: windows are cut from the result. Where an episode was truncated the sum
    ends there, as it does in the literature.
    """
    return np.cumsum(np.asarray(rewards, np.float64)[::-1])[::-1].copy()


def _numbers(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in "biuf" or values.ndim == 0:
        raise DataError(
            f"{name} must be an array of numbers, one row a step, not of {values.dtype} in the "
            f"shape {values.shape}"
        )
    if not (fine := readable(values)).all():
        step = int(np.argwhere(~fine)[0][0])
        raise DataError(f"{name} holds {values[~fine][0]} at step {step}: {MUST_BE}")
    return values


def _booleans(values: np.ndarray, name: str) -> np.ndarray:
    if not np.isin(values, (0, 1)).all():
        other = values[~np.isin(values, (0, 1))][0]
        raise DataError(f"{name} holds {other}: it must hold booleans, or 0 and 1")
    if values[:-1].any():
        step = int(np.flatnonzero(values)[0])
        raise DataError(
            f"{name} is set at step {step} of {len(values)}: only the last step ends an episode; "
            "write one file for each"
        )
    return values.astype(np.bool_)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b)
