"""The figures of experiments, declared by what they show: bars of arms, curves, matrices.

A figure is one of these or several side by side; `drawn` draws them, all alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

Values = Sequence[float]
LABELS = ("step", "loss (nats)")


@dataclass(frozen=True)
class Bars:
    """A bar an arm; of several values, one a seed, their mean, and each as a point."""

    heights: Mapping[str, float | Values]
    label: str
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """ends of intervals, by arm"""
    level: float | None = None
    """a dotted line to compare with"""
    log: str = ""
    """y: the axis is logarithmic"""
    near: bool = False
    """begin a little below the lowest value, not at 0"""
    top: float | None = None
    """end of the axis"""


@dataclass(frozen=True)
class Lines:
    """A line an arm, of several seeds in one colour."""

    curves: Mapping[str, Values | Sequence[Values]]
    """values, or those of every seed"""
    x: Sequence[float | str] | Mapping[str, Values] | None = None
    """places of the values, of all or by arm (default: they are losses, step by step)"""
    labels: tuple[str, str] = LABELS
    style: str | None = None
    """as matplotlib writes it (default: points on lines, of losses lines)"""
    log: str = ""
    """x, y, xy: these axes are logarithmic"""
    smooth: int = 1
    """running mean over so many values"""
    levels: Mapping[str, float] = field(default_factory=dict)
    """dotted lines to compare with, by name"""
    at: float | str | None = None
    """place of a dotted line that stands"""
    title: str = ""
    limits: tuple[float | None, float | None] | None = None
    """ends of the vertical axis"""


@dataclass(frozen=True)
class Matrices:
    """Matrices of one scale: blue below zero and red above, or blue alone; of integers, kinds."""

    matrices: Mapping[str, Tensor]
    """by title"""
    labels: tuple[str, str] = ("", "")


Panel = Bars | Lines | Matrices
Declared = Panel | Sequence[Panel]


def drawn(declared: Declared) -> Figure:
    """The figure of one panel or of several side by side."""
    panels: Sequence[Panel] = declared if isinstance(declared, Sequence) else [declared]
    counts = [max(1, len(one.matrices)) if isinstance(one, Matrices) else 1 for one in panels]
    widths: list[float] = []
    for one, count in zip(panels, counts, strict=True):
        bars = len(one.heights) if isinstance(one, Bars) else 0
        widths += [max(3.6, 0.8 * bars)] * count
    figure = Figure(figsize=(max(4.5, sum(widths)), 3.2), layout="tight")
    grid = {"width_ratios": widths}
    axes = iter(figure.subplots(1, len(widths), squeeze=False, gridspec_kw=grid)[0])
    for one, count in zip(panels, counts, strict=True):
        own = [next(axes) for _ in range(count)]
        if isinstance(one, Matrices):
            _matrices(one, own)
        elif isinstance(one, Lines):
            _lines(one, own[0])
        else:
            _bars(one, own[0])
    return figure


def _bars(bars: Bars, axis: Axes) -> None:
    seeds = {name: np.atleast_1d(values) for name, values in bars.heights.items()}
    names = [name.replace(", ", ",\n") for name in seeds]
    axis.bar(names, [float(values.mean()) for values in seeds.values()])
    for name, values in zip(names, seeds.values(), strict=True):
        if len(values) > 1:
            axis.plot([name] * len(values), values, "k.", markersize=4)
    for name, ends in bars.spans.items():
        axis.plot([name.replace(", ", ",\n")] * 2, ends, "k_-", linewidth=1)
    if bars.level is not None:
        axis.axhline(bars.level, color="grey", linestyle=":")
    axis.tick_params(axis="x", labelsize=7, labelrotation=60 if len(names) > 6 else 0)
    axis.set(ylabel=bars.label, yscale="log" if bars.log else "linear")
    if bars.near and seeds:
        axis.set_ylim(bottom=0.95 * min(map(min, seeds.values())))
    if bars.top is not None:
        axis.set_ylim(top=bars.top)


def _lines(lines: Lines, axis: Axes) -> None:
    for n, (name, values) in enumerate(lines.curves.items()):
        for seed, run in enumerate(values if np.ndim(values[0]) else [values]):
            width = min(lines.smooth, np.size(run))
            curve = np.convolve(np.asarray(run, float), np.ones(width) / width, "valid")
            x = lines.x[name] if isinstance(lines.x, Mapping) else lines.x
            style = lines.style or ("-" if x is None else "o-")
            places = range(len(curve)) if x is None else list(x)
            axis.plot(places, curve, style, color=f"C{n}", label=None if seed else name)
    for n, (name, level) in enumerate(lines.levels.items()):
        axis.axhline(level, color="grey", linestyle=(0, (1, 1 + n)), label=name)
    if lines.at is not None:
        axis.axvline(lines.at, color="grey", linestyle=":")  # type: ignore[arg-type]
    axis.set(xlabel=lines.labels[0], ylabel=lines.labels[1], title=lines.title)
    if lines.limits:
        axis.set_ylim(*lines.limits)
    if "y" in lines.log:
        axis.set_yscale("log")
    if "x" in lines.log:
        axis.set_xscale("log")
        if isinstance(lines.x, Sequence):
            axis.set_xticks(lines.x, [f"{value:g}" for value in lines.x])
            axis.minorticks_off()
    axis.legend(fontsize=7)


def _matrices(matrices: Matrices, axes: Sequence[Axes]) -> None:
    every = list(matrices.matrices.values())
    if not every:
        return
    high = max(float(m.nan_to_num().abs().max()) for m in every)
    low = -high if min(float(m.nan_to_num().min()) for m in every) < 0 else 0.0
    colours = "RdBu_r" if low < 0 else "Blues"
    if not torch.is_floating_point(every[0]):
        colours = "tab20"
    for axis, (title, matrix) in zip(axes, matrices.matrices.items(), strict=True):
        even = max(matrix.shape) <= 3 * min(matrix.shape)
        image = axis.imshow(
            matrix.numpy(), colours, vmin=low, vmax=high, aspect="equal" if even else "auto"
        )
        axis.set(xlabel=matrices.labels[0], ylabel=matrices.labels[1])
        axis.set_title(title, fontsize=9)
    axes[0].figure.colorbar(image, ax=axes[-1])
