"""Fan charts: what came before, what was forecast with its intervals, and what then was true."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from everyformer.report.style import HIGH, INK, WIDE, save_figure, styled

SHADES = (0.16, 0.24, 0.32, 0.4)
"""opacity of the intervals, from the widest on"""

DOTTED = 40
"""steps up to which a value has a dot, which of more would hide the forecast"""


class Fan(NamedTuple):
    """One forecast of one series."""

    series: str
    past: np.ndarray
    """(P,) values up to the origin; NaN where there is none"""
    truth: np.ndarray
    """(H,) likewise"""
    quantiles: np.ndarray
    """(H, Q)"""
    origin: str
    """the time of the last value before it"""


@styled
def draw_fans(fans: Sequence[Fan], levels: Sequence[float], path: Path) -> Path:
    """A picture with a panel for each of ``fans``, two in a row; steps count from the origin.

    Args:
        levels: of the quantiles, ascending.
        path: .png, .pdf or .svg; written whole.
    """
    columns = min(2, len(fans))
    rows = -(-len(fans) // columns)
    figure = Figure(figsize=(WIDE * columns, 0.85 * HIGH * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, fan in zip(panels, fans, strict=False):
        before, after = np.arange(1 - len(fan.past), 1), np.arange(1, len(fan.truth) + 1)
        for low in range(len(levels) // 2):
            shade = SHADES[min(low, len(SHADES) - 1)]
            label = (
                f"{levels[-1 - low] - levels[low]:.0%}"
                if low in (0, len(levels) // 2 - 1)
                else None
            )
            ends = fan.quantiles[:, low], fan.quantiles[:, -1 - low]
            axes.fill_between(after, *ends, color="#0072b2", alpha=shade, linewidth=0, label=label)
        middle = fan.quantiles[:, list(levels).index(0.5)]
        axes.plot(after, middle, color="#0072b2", label="forecast")
        axes.plot(before, fan.past, color=INK, linewidth=1)
        dots = "o" if len(fan.truth) <= DOTTED else ""
        axes.plot(after, fan.truth, color="#d55e00", marker=dots, markersize=2.5, label="true")
        axes.axvline(0.5, color="grey", linestyle=":", linewidth=0.8)
        axes.set_title(fan.series, loc="left")
        axes.set_xlabel(f"steps from {fan.origin}")
    for axes in panels[len(fans) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return save_figure(figure, path)
