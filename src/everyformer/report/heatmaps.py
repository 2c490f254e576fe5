"""Matrices as rows of panels with one colour scale: the drawing behind every picture of a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from everyformer.core.panels import Panel, Panels
from everyformer.report.style import WIDE, styled

PANEL = 1.25
"""of one square panel"""
FLAT = 1.6
"""height of a panel that fills the width"""
READABLE = 40
"""tokens up to which their texts fit beside a panel"""
LETTER = 0.09
"""that the text of a token needs"""
TITLE, NUMBERS, WORD = 0.14, 0.2, 0.17
"""heights of a line of a title, of the numbers at an axis, and of what it is called"""
AROUND = 0.08
BAR, BAR_TEXTS = 0.1, 0.72
"""width of a colour bar, and of its numbers and name"""
BELOW = 0.5
"""height of a colour bar below its panel, with its texts"""


@dataclass
class Grid:
    """Axes for rows of panels, and where colour bars of theirs may stand."""

    figure: Figure
    rows: list[list[Axes]]

    def beside(self, axes: Sequence[Axes], shrink: float = 0.8) -> Axes:
        """Axes of a colour bar right of the figure, over the height of ``axes``."""
        boxes = [one.get_position() for one in axes]
        low, high = min(box.y0 for box in boxes), max(box.y1 for box in boxes)
        width = self.figure.get_figwidth()
        left = 1 - (BAR_TEXTS + BAR) / width
        height = (high - low) * shrink
        return self.figure.add_axes((left, (low + high - height) / 2, BAR / width, height))

    def below(self, axes: Axes) -> Axes:
        """Axes of a colour bar under one panel."""
        box, height = axes.get_position(), self.figure.get_figheight()
        low = box.y0 - (NUMBERS + WORD + 0.12) / height
        return self.figure.add_axes((box.x0, low, box.width, 0.07 / height))


def panel_grid(
    rows: Sequence[Sequence[Panel]], *, wide: bool, bars: str, labels: Sequence[str] | None
) -> Grid:
    """A figure with axes for each of ``rows``.

    Args:
        wide: panels fill the width, whatever their shape.
        bars: where colour bars stand: 'beside', 'below' or '' for none.
        labels: a text for each token, which stand at both axes of every panel.
    """
    columns = max(len(row) for row in rows)
    texts = max((LETTER * 0.6 * len(text) for text in labels or ()), default=0.0)
    numbers = max(NUMBERS, texts)
    named = [
        any(len(row) > n and row[n].axes is not None and row[n].axes[1] for row in rows)  # type: ignore[index]
        for n in range(columns)
    ]
    alike = len({panel.values.shape for row in rows for panel in row}) == 1 and labels is None
    before = [
        AROUND + (WORD if named[n] else 0) + (0 if alike and n else numbers + 0.12)
        for n in range(columns)
    ]
    right = BAR + BAR_TEXTS + AROUND if bars == "beside" else AROUND + 0.1
    panel = max(PANEL, LETTER * len(labels)) if labels is not None else PANEL
    width = max(WIDE, panel * columns + sum(before) + right)
    panel = (width - sum(before) - right) / columns
    high = FLAT if wide else panel
    above = [AROUND + TITLE * max(one.title.count("\n") + bool(one.title) for one in row)
             for row in rows]  # fmt: skip
    under = [
        (numbers if not alike or len(row) > _length(rows, n + 1) else 0.02)
        + (WORD if any(one.axes is not None and one.axes[0] for one in row) else 0)
        + (BELOW if bars == "below" else 0)
        for n, row in enumerate(rows)
    ]
    height = sum(above) + sum(under) + high * len(rows) + AROUND
    figure = Figure(figsize=(width, height))
    top, made = height, []
    for row, over, room in zip(rows, above, under, strict=True):
        low = top - over - high
        lefts = [sum(before[: n + 1]) + panel * n for n in range(len(row))]
        places = [(left / width, low / height, panel / width, high / height) for left in lefts]
        made.append([figure.add_axes(place) for place in places])
        top = low - room
    if alike:
        for n, axes in enumerate(made):
            for column, one in enumerate(axes):
                outside = column >= _length(rows, n + 1)
                one.tick_params(labelleft=column == 0, labelbottom=outside)
    return Grid(figure, made)


def _length(rows: Sequence[Sequence[Panel]], n: int) -> int:
    return len(rows[n]) if n < len(rows) else 0


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
    bars = "" if scale is None else "below" if apart else "beside"
    grid = panel_grid(rows, wide=wide, bars=bars, labels=labels)
    figure = grid.figure
    figure.set_label(caption)
    bar = functools.partial(figure.colorbar, label=scale, extend="both" if signed else "max")
    everything = [panel.values for row in rows for panel in row]
    for row, row_axes in zip(rows, grid.rows, strict=True):
        shared = [panel.values for panel in row] if by_row else everything
        image: Any = None
        for panel, axis in zip(row, row_axes, strict=True):
            norm = _norm([panel.values] if apart else shared, signed)
            image = _draw(axis, panel, norm, signed, wide, labels)
            _write(axis, panel, norm, written or ())
            if bars == "below":
                bar(image, cax=grid.below(axis), orientation="horizontal")
        if by_row and bars == "beside":
            bar(image, cax=grid.beside(row_axes))
    if bars == "beside" and not by_row:
        bar(image, cax=grid.beside([axis for row_axes in grid.rows for axis in row_axes]))
    return figure


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
    """A text in each cell that is not blank, white on dark ones, where there are as many."""
    columns = panel.values.shape[1]
    if np.isfinite(panel.values).sum() != len(texts):
        return
    for n, text in enumerate(texts):
        row, column = divmod(n, columns)
        dark = norm(panel.values[row, column]) > 0.5
        colour, size = "white" if dark else "black", 7 if len(text) < 4 else 5
        axis.text(column, row, _plain(text), color=colour, fontsize=size, ha="center", va="center")


def _ticks(size: int) -> list[int]:
    """About four round positions below ``size``; fixed ones are not searched at every drawing."""
    result = MaxNLocator(4, integer=True).tick_values(0, size - 1)
    return [int(position) for position in result if 0 <= position < size]


def _plain(label: str) -> str:
    """Only what every font has; spaces and line ends are made visible."""
    visible = label.replace(" ", "␣").replace("\n", "↵").replace("\t", "→")
    return "".join(c if 0x20 < ord(c) < 0x250 or c in "␣↵→" else "·" for c in visible) or "·"
