"""`Space`: kinds of observations and actions, as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from everyformer.core.bounds import Count, Real, Whole
from everyformer.core.config import Options
from everyformer.core.errors import UnsupportedError

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
    def seen_in(rows: Sequence[np.ndarray], what: str, *, action: bool) -> Space:
        """The smallest space for arrays that came without one: a column of whole numbers is
        discrete up to its largest, everything else is a box without bounds.

        Args:
            what: they hold and whose, for the refusal: 'the actions in myepisodes'.
            action: whether they are to be actions: whole numbers, or vectors of reals.

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


def readable(values: np.ndarray) -> np.ndarray:
    """Mask of the numbers that are finite also in the 32 bits in which models read them."""
    if values.dtype.kind != "f":
        return np.ones(values.shape, np.bool_)
    with np.errstate(over="ignore"):
        finite: np.ndarray = np.abs(values.astype(np.float64)) <= LARGEST
    return finite
