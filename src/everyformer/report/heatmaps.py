"""Matrices as rows of panels with one colour scale: the drawing behind every picture of a model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure

from everyformer.core.panels import Panel, Panels
from everyformer.report.style import WIDE, styled

PANEL = 1.25
"""inches of one square panel"""
READABLE = 40
"""tokens up to which their texts fit beside a panel"""
LETTER = 0.09
"""inches that the text of a token needs"""


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
) -> Figure:
    """A figure of panels, labelled with its caption.

    Args:
        scale: what the colours mean; None draws no colour bar.
        signed: blue below zero, white at zero, red above.
        by_row: a colour scale for each row instead of one for all; apart: one for each panel.
        wide: panels fill the width, whatever their shape.
        labels: a text for each token, written where there is room.
    """
    columns = max(len(row) for row in rows)
    panel_width = PANEL
    if labels is not None and len(labels) <= READABLE:
        panel_width = max(PANEL, LETTER * len(labels))
    width = max(WIDE, panel_width * columns + 0.9)
    high = 2.2 if wide else (width - 1.0) / columns + 0.25
    figure = Figure(figsize=(width, high * len(rows) + 0.2), layout="constrained")
    figure.set_label(caption)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    ends = "both" if signed else "max"
    bar = functools.partial(figure.colorbar, label=scale, shrink=0.8, extend=ends)
    everything = [panel.values for row in rows for panel in row]
    for row, row_axes in zip(rows, axes, strict=True):
        shared = [panel.values for panel in row] if by_row else everything
        image: Any = None
        for panel, axis in zip(row, row_axes, strict=False):
            norm = _norm([panel.values] if apart else shared, signed)
            image = _draw(axis, panel, norm, signed, wide, labels)
            if apart and scale is not None:
                bar(image, ax=axis, location="bottom")
        for axis in row_axes[len(row) :]:
            axis.set_visible(False)
        if by_row and scale is not None:
            bar(image, ax=list(row_axes))
    if scale is not None and not (by_row or apart):
        bar(image, ax=axes.ravel().tolist(), aspect=30)
    return figure


def draw_offered(panels: Panels) -> Figure:
    """The figure of what a part of a model offers."""
    return draw_panels(**vars(panels))


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
    size = panel.values.shape[0]
    if labels is not None and len(labels) == size <= READABLE:
        texts = [*map(_plain, labels)]
        rotation = 90 if max(map(len, texts)) > 1 else 0
        axis.set_xticks(range(size), texts, fontsize=5, rotation=rotation)
        axis.set_yticks(range(size), texts, fontsize=5)
    else:
        axis.locator_params(nbins=4, integer=True)
    return image


def _plain(label: str) -> str:
    """Only what every font has; spaces and line ends are made visible."""
    visible = label.replace(" ", "␣").replace("\n", "↵").replace("\t", "→")
    return "".join(c if 0x20 < ord(c) < 0x250 or c in "␣↵→" else "·" for c in visible) or "·"
