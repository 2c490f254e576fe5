"""Where the panels of a figure stand, in inches: laid out by hand, because all are alike.

matplotlib's own layout measures every text of every panel twice, which takes longer than drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer.core.panels import Panel
from everyformer.report.style import WIDE

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
