"""Matrices as rows of panels with one colour scale: the drawing behind every picture of a model."""

import functools
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from everyformer.core.panels import Panel, Panels
from everyformer.core.wording import shortened
from everyformer.lab.show.style import WIDE, styled

PANEL = 1.6
"""of one square panel with its numbers"""
FLAT = 2.0
"""height of a panel that fills the width"""
READABLE = 40
"""tokens up to which their texts fit beside a panel"""
LETTER = 0.09
"""that the text of a token needs"""
LINE, BELOW = 0.14, 0.5
"""heights of a line of a title, and of a colour bar below its panel with its texts"""
BAR_WIDTH = 0.8
"""width of a colour bar with its numbers and name"""


@styled
def draw_panels(
    rows: Sequence[Sequence[Panel]],
    caption: str,
    scale: str | None,
    *,
    signed: bool = False,
    by_row: bool = False,
    apart: bool = False,
    wide: bool = False,
    labels: Sequence[str] | None = None,
    text: bool = False,
) -> Figure:
    """A figure of panels, labelled with its caption.

    Args:
        scale: what the colours mean; None draws no colour bar.
        signed: blue below zero, white at zero, red above.
        by_row: a colour scale for each row instead of one for all; apart: one for each panel.
        wide: panels fill the width, whatever their shape.
        labels: a text for each token, written where there is room.
        text: whether each is written in the token's cell, row by row.
    """
    written, labels = (labels, None) if text else (None, labels)
    if labels is not None and not all(_labelled(panel, labels) for row in rows for panel in row):
        labels = None
    figure, places = _axes_of(rows, wide, 0 if scale is None else 2 if apart else 1, labels)
    figure.set_label(caption)
    bar = functools.partial(figure.colorbar, label=scale, extend="both" if signed else "max")
    everything = [panel.values for row in rows for panel in row]
    for row, axes in zip(rows, places, strict=True):
        shared = [panel.values for panel in row] if by_row else everything
        image: Any = None
        for panel, axis in zip(row, axes, strict=True):
            norm = _norm([panel.values] if apart else shared, signed)
            image = _draw(axis, panel, norm, signed, wide, labels)
            _write(axis, panel, norm, written or ())
            if apart and scale is not None:
                bar(image, ax=axis, orientation="horizontal", aspect=15)
        if by_row and not apart and scale is not None:
            bar(image, ax=axes)
    if scale is not None and not apart and not by_row:
        bar(image, ax=[axis for axes in places for axis in axes], shrink=0.8, aspect=30)
    return figure


def _axes_of(
    rows: Sequence[Sequence[Panel]], wide: bool, bars: int, labels: Sequence[str] | None
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with axes for each of ``rows``, with room for ``bars``: 1 beside, 2 below."""
    columns = max(map(len, rows))
    panel = max(PANEL, BAR_WIDTH / 2 + LETTER * len(labels or ()))
    width = max(WIDE, panel * columns + BAR_WIDTH * (bars == 1))
    high = FLAT if wide else (width - BAR_WIDTH * (bars == 1)) / columns
    lines = sum(max(one.title.count("\n") + 1 for one in row) for row in rows)
    height = 2 * LINE + LINE * lines + (high + BELOW * (bars == 2)) * len(rows)
    figure = Figure(figsize=(width, height), layout="compressed")
    every = figure.subplots(len(rows), columns, squeeze=False)
    places = [list(axes[: len(row)]) for row, axes in zip(rows, every, strict=True)]
    for row, axes in zip(rows, every, strict=True):
        for axis in axes[len(row) :]:
            axis.remove()
    if labels is None and len({panel.values.shape for row in rows for panel in row}) == 1:
        for n, row in enumerate(places):
            below = len(places[n + 1]) if n + 1 < len(places) else 0
            for column, axis in enumerate(row):
                axis.tick_params(labelleft=column == 0, labelbottom=column >= below)
    return figure, places


def _labelled(panel: Panel, labels: Sequence[str]) -> bool:
    """True if a panel's rows and columns are the tokens, few enough for their texts."""
    return panel.values.shape[0] == len(labels) <= READABLE


def draw_offered(panels: Panels, labels: Sequence[str] | None = None) -> Figure:
    """The figure of what a part of a model offers; ``labels``: a text for each token."""
    return draw_panels(**vars(panels), labels=labels if panels.text else None)


def wrapped(panels: list[Panel], columns: int) -> list[list[Panel]]:
    """One long row as several."""
    return [panels[i : i + columns] for i in range(0, len(panels), columns)]


def _norm(values: list[np.ndarray], signed: bool) -> Normalize:
    """A few extremes (the first token of a causal row reads itself alone) may be cut off."""
    top = max(float(np.nanquantile(np.abs(one), 0.995)) for one in values) or 1.0
    return Normalize(-top, top) if signed else PowerNorm(0.5, 0.0, top)


def _draw(axis: Axes, panel: Panel, norm: Normalize, signed: bool, wide: bool, labels: Any) -> Any:
    colours = matplotlib.colormaps["RdBu_r" if signed else "Blues"]
    colours = colours.with_extremes(bad=(0, 0, 0, 0))
    image = axis.imshow(
        panel.values,
        cmap=colours,
        norm=norm,
        aspect="auto" if wide else "equal",
        interpolation="none",
    )
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set_title(panel.title, fontsize=8)
    axis.tick_params(labelsize=7, length=2)
    if panel.axes is not None:
        axis.set_xlabel(panel.axes[0], fontsize=8)
        axis.set_ylabel(panel.axes[1], fontsize=8)
    if labels is not None:
        size = len(labels)
        texts = [*map(_plain, labels)]
        rotation = 90 if max(map(len, texts)) > 1 else 0
        axis.set_xticks(range(size), texts, fontsize=5, rotation=rotation)
        axis.set_yticks(range(size), texts, fontsize=5)
    else:
        rows, columns = panel.values.shape
        axis.set(xticks=_ticks(columns), yticks=_ticks(rows))
    return image


def _write(axis: Axes, panel: Panel, norm: Normalize, texts: Sequence[str]) -> None:
    """A text in each cell that is not blank, white on dark ones, where there are as many; upright
    and cut to the cell where some are longer than a letter."""
    lines, columns = panel.values.shape
    if np.isfinite(panel.values).sum() != len(texts):
        return
    upright = max(map(len, texts)) > 1
    room = max(2, int(FLAT / lines / (LETTER / 2))) if upright else 1
    look: dict[str, Any] = {"rotation": 90, "fontsize": 5} if upright else {"fontsize": 7}
    for n, text in enumerate(map(_plain, texts)):
        row, column = divmod(n, columns)
        colour = "white" if norm(panel.values[row, column]) > 0.5 else "black"
        shown = shortened(text, room)
        axis.text(column, row, shown, color=colour, ha="center", va="center", **look)


def _ticks(size: int) -> list[int]:
    """About four round positions below ``size``; fixed ones are not searched at every drawing."""
    result = MaxNLocator(4, integer=True).tick_values(0, size - 1)
    return [int(position) for position in result if 0 <= position < size]


def _plain(label: str) -> str:
    """Only what every font has; spaces and line ends are made visible."""
    visible = label.replace(" ", "␣").replace("\n", "↵").replace("\t", "→")
    return "".join(c if 0x20 < ord(c) < 0x250 or c in "␣↵→" else "·" for c in visible) or "·"
