"""Curves of members in one figure, named where they end; those of many others are pale.

Names stand right of the axes, as near to the ends of their curves as the others allow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer.lab.show.style import INK, Styles

LINE = 9.5
"""points from one name to the next"""
AROUND = 50.0
"""points of a figure's height that lie outside its axes, at least"""
NAMES_AT = 1.06
"""where names begin, in widths of the axes"""
Values = Sequence[float] | np.ndarray


class Lines:
    """The curves of one pair of axes."""

    def __init__(self, figure: Figure, axes: Axes, styles: Styles) -> None:
        self.figure, self.axes, self.styles = figure, axes, styles
        self._ends: dict[str, tuple[float, float]] = {}
        self._drawn = 0

    def id_of(self, member: str) -> str | None:
        """An id for the next thing that is drawn of ``member``."""
        self._drawn += 1
        about = self.styles[member].about
        return f"{about}{self._drawn}" if about else None

    def curve(self, member: str, x: Values, y: Values) -> None:
        """A curve in the style of ``member``, whose name stands at the end of its first one."""
        style = self.styles[member]
        self.axes.plot(x, y, gid=self.id_of(member), **style.line)
        if style.named:
            self.named(member, x[-1], y[-1])

    def named(self, member: str, x: float, y: float) -> None:
        """A name for what is drawn at this place, if ``member`` has none yet."""
        self._ends.setdefault(member, (x, y))

    def faint(self, member: str, x: Values, y: Values) -> None:
        """A thin curve behind, of a named member alone."""
        style, gid = self.styles[member], self.id_of(member)
        if style.named:
            self.axes.plot(x, y, color=style.colour, linewidth=0.8, alpha=0.45, gid=gid)

    def band(self, member: str, x: Values, low: Values, high: Values) -> None:
        """The spread around a curve, of a named member alone."""
        style, gid = self.styles[member], self.id_of(member)
        if style.named:
            around: dict[str, Any] = {"color": style.colour, "alpha": 0.2, "linewidth": 0}
            self.axes.fill_between(x, low, high, gid=gid, **around)

    def name(self) -> None:
        """Write the names, when the limits of the axes are set."""
        axes, names = self.axes, list(self._ends)
        self.figure.set_figheight(
            max(self.figure.get_figheight(), (LINE * len(names) + AROUND) / 72)
        )
        scale = axes.transData + axes.transAxes.inverted()
        heights = [float(scale.transform(self._ends[member])[1]) for member in names]
        gap = LINE / (72 * self.figure.get_figheight() - AROUND)
        for member, height in zip(names, spread(heights, gap), strict=True):
            x, y = self._ends[member]
            low, high = sorted(axes.get_ylim())
            text = axes.annotate(
                member,
                xy=(x, min(max(y, low), high)),
                xytext=(NAMES_AT, height),
                textcoords="axes fraction",
                va="center",
                fontsize=7.5,
                color=INK,
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-", "color": self.styles[member].colour, "linewidth": 0.5,
                    "alpha": 0.6, "shrinkA": 2, "shrinkB": 2, "relpos": (0, 0.5),
                },
            )  # fmt: skip
            text.set_gid(self.id_of(member))
            assert text.arrow_patch is not None
            text.arrow_patch.set_gid(self.id_of(member))


def spread(
    heights: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0
) -> list[float]:
    """Heights as near to the wanted ones as being ``gap`` apart within low to high allows.

    Those that are too near are moved around their mean (the nearest in least squares: isotonic
    regression of the heights less their gaps, by pooling adjacent violators).
    """
    order = np.argsort(heights, kind="stable")
    pools: list[tuple[float, int]] = []
    for rank, n in enumerate(order):
        mean, size = heights[n] - gap * rank, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    levels = np.repeat([mean for mean, _ in pools], [size for _, size in pools])
    levels = np.clip(levels, low, max(low, high - gap * (len(order) - 1)))
    result = np.empty(len(order))
    result[order] = levels + gap * np.arange(len(order))
    return [float(height) for height in result]
