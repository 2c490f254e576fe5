"""One style for every figure: colours, sizes, and the ways to files and into a page.

No pyplot, so no state: figures are made by `styled` functions and die with their last reference.
Colours are those of Okabe and Ito, told apart by colour-blind readers too; markers differ as well.
"""

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from everyformer.system.files import file_written_whole, write_text

INK = "#1b1f24"
"""text and frames; a page puts its own text colour in this one's place"""
MANY = 8
"""members that are told apart by colour and named in every figure; of more only the best few are"""
WIDE, HIGH = 4.0, 2.9
"""inches: shown 340 pixels wide, on a phone, 9 point are still 10 pixels"""

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6bbe", "#a07040")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_OUTSIDER = "#808890"
_XML = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n'

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
    """The look of one member in every figure."""

    colour: str
    marker: str
    named: bool = True
    """else one of many: thin and grey, without a name of its own in figures"""
    about: str = ""
    """begins the ids of its lines, by which a page shows and hides them"""

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of `Axes.plot`."""
        if self.named:
            return {"color": self.colour, "marker": self.marker, "zorder": 3}
        return {"color": self.colour, "linewidth": 0.7, "alpha": 0.6, "zorder": 2}


class Styles:
    """The style of each member of a comparison, the same in all of its figures.

    Args:
        members: in the order of their colours.
        named: those that stand out (default: all); the others are grey.
        groups: of each member, in words.
    """

    def __init__(
        self,
        members: Iterable[str],
        named: Iterable[str] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        everyone = list(dict.fromkeys(members))
        named_members = set(everyone if named is None else named)
        groups = groups or {}
        self.groups = list(dict.fromkeys(groups.values()))
        self._styles: dict[str, Style] = {}
        coloured = 0
        for n, member in enumerate(everyone):
            group = self.groups.index(groups[member]) if member in groups else "x"
            about = f"member{n}-group{group}-"
            if member in named_members:
                marker = _MARKERS[(coloured + coloured // 8) % 8]
                self._styles[member] = Style(_COLOURS[coloured % 8], marker, about=about)
                coloured += 1
            else:
                self._styles[member] = Style(_OUTSIDER, "", named=False, about=about)

    def __getitem__(self, member: str) -> Style:
        """Grey for a baseline that does not take part itself."""
        return self._styles.get(member, Style(_OUTSIDER, "x"))

    def titles(self) -> dict[str, str]:
        """Members by what begins the ids of their lines."""
        return {style.about: member for member, style in self._styles.items()}


NARROW = 12
"""times the smallest value: a log axis that reaches no further gets more labels"""


@dataclass(frozen=True)
class Drawing:
    """A figure with what it shows."""

    name: str
    """of its file"""
    title: str
    figure: Figure
    caption: str


def label_decades(axis: Any, words: Callable[[float], str], base: int = 10) -> None:
    """Labels at 1, 2 and 5 of every decade, or closer; at the powers of another base."""
    low, high = axis.get_view_interval()
    few = (1.0, 2.0, 5.0) if high / low > NARROW else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(base, subs=few if base == 10 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())


def new_figure(height: float = HIGH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, figure.subplots()


def ranked_figure(names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """A figure with a line for each of ``names``, the first on top."""
    figure, axes = new_figure(height + (0.34 if len(names) <= MANY else 0.2) * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    return figure, axes


@styled
def save_figure(figure: Figure, path: Path) -> Path:
    """Write as PNG or SVG, by the name's end, on white."""
    with file_written_whole(path, parents=True) as new:
        _settle(figure)
        figure.savefig(new, dpi=160, facecolor="white", metadata=_no_date(path.suffix))
    return path


@styled
def svg_text(figure: Figure) -> str:
    """The figure as an <svg> element, rendered once for a file and for a page.

    Its text is of `INK`; nothing is behind it.
    """
    _settle(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata=_no_date(".svg"))
    svg = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)


def save_svg(svg: str, path: Path) -> Path:
    """Write what `svg_text` gave as a picture on white."""
    end = svg.index(">") + 1
    white = '\n <rect width="100%" height="100%" fill="white"/>'
    write_text(path, f"{_XML}{svg[:end]}{white}{svg[end:]}", parents=True)
    return path


def inline_svg(
    svg: str, prefix: str, description: str, titles: Mapping[str, str] | None = None
) -> str:
    """An <svg> element of `svg_text`, for the middle of a page.

    Its text takes the page's colour; its ids begin with ``prefix``, unlike those of other figures.
    Elements whose id begins with one of ``titles`` are given that title.
    """
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    for begins, title in (titles or {}).items():
        element = f"<title>{html.escape(title)}</title>"
        svg = re.sub(rf'(<g id="{re.escape(begins)}[^"]*">)', lambda tag: tag[1] + element, svg)  # noqa: B023
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
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")


def _no_date(suffix: str) -> dict[str, str | None]:
    """Metadata without a date, so that the same figure is the same file."""
    return {"Date": None} if suffix == ".svg" else {}
