"""The plain figures of experiments: lines, bars, boxes and matrices, each named."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor


def panels(
    columns: int = 1, size: tuple[float, float] = (5, 3), **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes side by side; ``options`` are those of `Figure.subplots`."""
    figure = Figure(figsize=size, layout="tight")
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def plot(
    axis: Axes,
    curves: Mapping[str, Sequence[Any]],
    x: Sequence[float] | None = None,
    labels: tuple[str, str] = ("step", "loss (nats)"),
    *,
    style: str | None = None,
    smooth: int = 1,
    level: float | None = None,
    ticks: bool = False,
    **options: Any,
) -> None:
    """A line a name, of several seeds in one colour.

    Args:
        curves: values, or those of every seed.
        x: places of the values (default: they are losses, step by step).
        labels: of both axes.
        style: of the lines, as matplotlib writes it (default: points, of losses none).
        smooth: running mean over so many values.
        level: a dotted line to compare with.
        ticks: mark the values of ``x`` and no others.
        options: of the axes.
    """
    for n, (name, values) in enumerate(curves.items()):
        for seed, run in enumerate(values if np.ndim(values[0]) else [values]):
            width = min(smooth, len(run))
            curve = np.convolve(run, np.ones(width) / width, "valid")
            at = range(len(curve)) if x is None else x
            style = style or ("-" if x is None else "o-")
            axis.plot(at, curve, style, color=f"C{n}", label=None if seed else name)
    if level is not None:
        axis.axhline(level, color="grey", linestyle=":")
    axis.set(**{"xlabel": labels[0], "ylabel": labels[1], **options})
    if ticks and x is not None:
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.minorticks_off()
    axis.legend(fontsize=7)


def lines(
    curves: Mapping[str, Sequence[Any]],
    x: Sequence[float] | None = None,
    *labels: tuple[str, str],
    size: tuple[float, float] = (5, 3),
    **options: Any,
) -> Figure:
    """One panel of what `plot` draws."""
    figure, [axis] = panels(size=size)
    plot(axis, curves, x, *labels, **options)
    return figure


def bars(
    heights: Mapping[str, float],
    size: tuple[float, float] = (4, 3),
    colours: Sequence[str] | None = None,
    **options: Any,
) -> Figure:
    """A bar a name; ``options`` are those of the axes."""
    figure, [axis] = panels(size=size)
    plot_bars(axis, heights, colours, **options)
    return figure


def plot_bars(
    axis: Axes, heights: Mapping[str, float], colours: Sequence[str] | None = None, **options: Any
) -> None:
    """A bar a name, on these axes."""
    names = [name.replace(", ", ",\n") for name in heights]
    axis.bar(names, list(heights.values()), color=colours)
    axis.tick_params(axis="x", labelsize=8)
    axis.set(**options)


def boxes(numbers: Mapping[str, Sequence[float]], label: str) -> Figure:
    """A box a name, over its seeds."""
    figure, [axis] = panels(size=(4, 3))
    axis.boxplot(list(numbers.values()), tick_labels=list(numbers))
    axis.set(ylabel=label)
    return figure


def plot_matrix(axis: Axes, matrix: Tensor, **options: Any) -> Any:
    """Blue below zero, red above; the image, for a colour bar."""
    limit = float(matrix.nan_to_num().abs().max())
    image = axis.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set(**options)
    return image
