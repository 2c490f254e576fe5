"""The plain figures of experiments: bars, lines and boxes, each named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure


def bars(
    heights: Mapping[str, float],
    size: tuple[float, float] = (4, 3),
    colours: Sequence[str] | None = None,
    **options: Any,
) -> Figure:
    """A bar a name; ``options`` are those of the axes."""
    figure = Figure(figsize=size)
    axis = figure.subplots()
    axis.bar(list(heights), list(heights.values()), color=colours)
    axis.set(**options)
    figure.tight_layout()
    return figure


def lines(
    curves: Mapping[str, Sequence[float]], look: str = "-", first: int = 0, **options: Any
) -> Figure:
    """A line a name, from place ``first`` on; ``options`` of the axes, unless losses by step."""
    figure = Figure(figsize=(5, 3))
    axis = figure.subplots()
    for name, values in curves.items():
        axis.plot(range(first, first + len(values)), values, look, label=name)
    axis.set(**{"xlabel": "step", "ylabel": "loss (nats)"} | options)
    axis.legend()
    figure.tight_layout()
    return figure


def boxes(numbers: Mapping[str, Sequence[float]], label: str) -> Figure:
    """A box a name, over its seeds."""
    figure = Figure(figsize=(4, 3))
    axis = figure.subplots()
    axis.boxplot(list(numbers.values()), tick_labels=list(numbers))
    axis.set(ylabel=label)
    figure.tight_layout()
    return figure
