"""One style for every figure: colours, sizes, and the ways to files and into a page.

No pyplot, so no state: figures are made by `styled` functions and die with their last reference.
Colours are those of Okabe and Ito, told apart by colour-blind readers too; markers differ as well.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from everyformer.core.files import file_written_whole

INK = "#1b1f24"
"""text and frames; a page puts its own text colour in this one's place"""
WIDE, HIGH = 4.0, 2.9
"""inches: shown 340 pixels wide, on a phone, 9 point are still 10 pixels"""
FORMATS = ("png", "svg")

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6bbe", "#a07040")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_OUTSIDER = "#808890"

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    "grid.color": "#8a8f98",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "everyformer",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}

styled = matplotlib.rc_context(_RC)
"""decorator of every function that draws"""


@dataclass(frozen=True)
class Style:
    """How one member is drawn."""

    colour: str
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """What `Axes.plot` takes."""
        return {"color": self.colour, "marker": self.marker}


class Styles:
    """The style of each member of a comparison, the same in all of its figures."""

    def __init__(self, members: Iterable[str]) -> None:
        self._styles = {
            member: Style(_COLOURS[i % 8], _MARKERS[(i + i // 8) % 8])
            for i, member in enumerate(dict.fromkeys(members))
        }

    def __getitem__(self, member: str) -> Style:
        """Grey for a baseline that does not take part itself."""
        return self._styles.get(member, Style(_OUTSIDER, "x"))


def new_figure(height: float = HIGH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, figure.subplots()


def ranked_figure(names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """A figure with a line for each of ``names``, the first on top."""
    figure, axes = new_figure(height + 0.34 * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    return figure, axes


def name_members(figure: Figure, axes: Axes) -> None:
    """A legend above the axes, where it hides nothing; the figure grows by its height."""
    names = axes.get_legend_handles_labels()[1]
    columns = 3 if max(map(len, names)) <= 16 else 2
    figure.set_figheight(figure.get_figheight() + 0.18 * -(-len(names) // columns))
    figure.legend(loc="outside upper left", ncols=columns)


@styled
def save_figure(figure: Figure, path: Path) -> Path:
    """Write as PNG or SVG, by the name's end, on white."""
    with file_written_whole(path, parents=True) as new:
        _settle(figure)
        figure.savefig(new, dpi=160, facecolor="white", metadata=_no_date(path.suffix))
    return path


@styled
def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """The figure as an <svg> element for the middle of a page.

    Its text takes the page's colour; its ids begin with ``prefix``, unlike those of other figures.
    """
    _settle(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata=_no_date(".svg"))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'\sid="', f' id="{prefix}-', svg)
    svg = svg.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
    svg = svg.replace(INK, "currentColor")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    widest = round(1.6 * float(size[1]))
    opening = (
        f'<svg viewBox="0 0 {size[1]} {size[2]}" style="max-width:{widest}px" role="img" '
        f'aria-label="{html.escape(description)}">'
    )
    return opening + svg[svg.index(">") + 1 :]


def _settle(figure: Figure) -> None:
    """Lay the figure out once: later drawings, which would do it twice each, keep the places."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _no_date(suffix: str) -> dict[str, str | None]:
    """The same figure is the same file."""
    return {"Date": None} if suffix == ".svg" else {}
