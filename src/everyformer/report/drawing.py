"""A figure of a comparison with what it shows, and the labels of its logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

NARROW = 12
"""times the smallest value: a log axis that reaches no further gets more labels"""


@dataclass(frozen=True)
class Drawing:
    """A figure with what it shows."""

    name: str
    """of its file"""
    title: str
    figure: Figure
    caption: str


def label_decades(axis: Any, words: Callable[[float], str], base: int = 10) -> None:
    """Labels at 1, 2 and 5 of every decade, or closer; at the powers of another base."""
    low, high = axis.get_view_interval()
    few = (1.0, 2.0, 5.0) if high / low > NARROW else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(base, subs=few if base == 10 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())
