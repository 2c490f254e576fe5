"""`Space`: kinds of observations and actions, as plain values that models and files hold.

gymnasium's own spaces are met at the border alone: `Space.of` reads one and refuses those that no
policy here reads or gives, `Space.for_gymnasium` gives one back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from everyformer.core.bounds import Count, Real, Whole
from everyformer.core.config import Options
from everyformer.core.errors import UnsupportedError
from everyformer.system.extras import extra_module

LARGEST = float(np.finfo(np.float32).max)
"""the largest number that models read"""


@dataclass(frozen=True)
class Space(Options):
    """Whole numbers below ``count`` (discrete), or arrays of a shape between bounds (box)."""

    kind: Literal["discrete", "box"]
    dtype: str
    """as numpy calls it"""
    shape: tuple[Whole, ...] = ()
    """of one observation or action; () if discrete"""
    count: Count | None = None
    """how many values there are, if discrete"""
    low: tuple[Real | None, ...] = ()
    """the smallest value of each number, the last axis fastest; one for all, None where there is
    none"""
    high: tuple[Real | None, ...] = ()
    """the largest likewise"""

    @property
    def discrete(self) -> bool:
        return self.kind == "discrete"

    @property
    def size(self) -> int:
        """Numbers of one observation or action, or values that it can have."""
        return math.prod(self.shape) if self.count is None else self.count

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and largest values of a box in its shape, infinite where there is none."""
        ends = [
            np.array([beyond if end is None else end for end in ends])
            for ends, beyond in ((self.low, -math.inf), (self.high, math.inf))
        ]
        low, high = (
            np.full(self.shape, end) if len(end) == 1 else end.reshape(self.shape) for end in ends
        )
        return low, high

    @staticmethod
    def of(space: Any, what: str, *, action: bool) -> Space:
        """The record of a gymnasium space.

        Args:
            what: it holds and whose, for the refusal: 'the actions of CartPole-v1'.
            action: whether it is to be one that policies give: discrete, or a vector of reals.

        Raises:
            UnsupportedError: another one.
        """
        spaces = extra_module("gymnasium.spaces", "rl", "an environment")
        if isinstance(space, spaces.Discrete):
            if space.start != 0:
                raise UnsupportedError(
                    f"{what} are numbered from {space.start}; only those numbered from 0 are "
                    "supported: subtract it in a gymnasium wrapper"
                )
            return Space("discrete", "int64", count=int(space.n))
        if isinstance(space, spaces.Box) and (
            not action or (len(space.shape) == 1 and space.dtype.kind == "f")
        ):
            low, high = (_ends(end) for end in (space.low, space.high))
            return Space("box", space.dtype.name, tuple(space.shape), low=low, high=high)
        allowed = "Discrete and Box of one dimension, of reals," if action else "Discrete and Box"
        raise UnsupportedError(
            f"{what} are {space}; only {allowed} are supported: bring them into one of these with "
            "a gymnasium wrapper"
        )

    @staticmethod
    def seen_in(rows: Sequence[np.ndarray], what: str, *, action: bool) -> Space:
        """The smallest space for arrays that came without one: a column of whole numbers is
        discrete up to its largest, everything else is a box without bounds.

        Args:
            what, action: as in `of`.

        Raises:
            UnsupportedError: reals without an axis for the numbers of a row, or actions that are
                neither a column of whole numbers nor vectors of reals.
        """
        first = rows[0]
        if first.ndim == 1 and first.dtype.kind in "iu":
            largest = max(int(each.max()) for each in rows)
            return Space("discrete", "int64", count=max(1, 1 + largest))
        if first.ndim == 1 or (action and (first.ndim != 2 or first.dtype.kind != "f")):
            needed = "a whole number a row, or reals in the shape (rows, numbers)"
            raise UnsupportedError(
                f"{what} are {first.dtype} in the shape {first.shape}; {needed} are supported"
            )
        return Space("box", first.dtype.name, first.shape[1:], low=(None,), high=(None,))

    def misfit(self, rows: np.ndarray, count: int | None = None, row: str = "row") -> str | None:
        """Reason why an array is not one of observations or actions of this space, one a ``row``
        and ``count`` in all; None if it is. Bounds of boxes are not looked at."""
        if rows.ndim == 0 or (count is not None and len(rows) != count):
            return f"have the shape {rows.shape}: {count} rows are needed"
        if self.discrete:
            if rows.ndim > 1 or rows.dtype.kind not in "iu":
                return f"are {rows.dtype} in the shape {rows.shape}: a whole number a row is needed"
            if (outside := (rows < 0) | (rows >= self.size)).any():
                first = int(outside.argmax())
                allowed = f"from 0 to {self.size - 1} is allowed"
                return f"hold {rows[first]} at {row} {first}: {allowed}"
            return None
        if rows.shape[1:] != self.shape:
            return f"have the shape {rows.shape[1:]} a row: {self.shape} is needed"
        if rows.dtype.kind != "f" and np.dtype(self.dtype).kind == "f":
            return f"are {rows.dtype}: reals ({self.dtype}) are needed"
        return None

    def for_gymnasium(self) -> Any:
        """The gymnasium space that this is the record of."""
        spaces = extra_module("gymnasium.spaces", "rl", "an environment")
        if self.discrete:
            return spaces.Discrete(self.count)
        low, high = self.bounds()
        return spaces.Box(low.astype(self.dtype), high.astype(self.dtype), dtype=self.dtype)


def readable(values: np.ndarray) -> np.ndarray:
    """Mask of the numbers that are finite also in the 32 bits in which models read them."""
    if values.dtype.kind != "f":
        return np.ones(values.shape, np.bool_)
    with np.errstate(over="ignore"):
        finite: np.ndarray = np.abs(values.astype(np.float64)) <= LARGEST
    return finite


def _ends(values: np.ndarray) -> tuple[float | None, ...]:
    """The ends of a box; a single one where all are alike, None for infinite ones."""
    flat = values.ravel()
    flat = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return tuple(float(end) if math.isfinite(end) else None for end in flat.tolist())
