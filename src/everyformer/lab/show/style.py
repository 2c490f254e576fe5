"""One style for every figure: colours, sizes, and the ways to files and into a page.

No pyplot, so no state: figures are made by `styled` functions and die with their last reference.
Each is as wide as a column of a paper, its text is text in every vector format.

A member looks the same in all figures of all comparisons: the hue is that of its family, the shade,
the marker and the dashes say which of the family it is (`looks_of_family`). Hues are those of Okabe
and Ito and a few between them, distinct for colour-blind readers too.
"""

import html
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from everyformer.core.seeds import twin
from everyformer.family import list_members
from everyformer.family.rows import BASELINES
from everyformer.system.files import file_written_whole, write_text

INK = "#1b1f24"
"""text and frames; a page puts its own text colour in this one's place"""
MANY = 8
"""members that are told apart by colour and named in every figure; of more only the best few are"""
WIDE, HIGH = 3.4, 2.6
"""inches: one column of a paper; on a phone, shown 340 pixels wide, 8 point are 11 pixels"""

_HUES = (
    (INK, "#7a828c"),
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f09a62"),
    ("#009e73", "#5cc4a3"),
    ("#cc79a7", "#8f4a72"),
    ("#e69f00", "#a87400"),
    ("#b59be0", "#7d5bb8"),
    ("#8c5a2b", "#c08a52"),
    ("#00565e", "#4fa3ab"),
    ("#a8003a", "#dd6d92"),
)
"""of the families in their order, each in two shades; the last is of all that are not ours"""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":")
_STEPS = (
    (12.0, (1.0, 2.0, 5.0)),
    (4.0, (1.0, 2.0, 3.0, 5.0)),
    (0.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
)
"""labels of a decade, by how many times its low end the high end of an axis is"""
_UNDATED: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""metadata, so that the same figure is the same file"""
_XML = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n'

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 200,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 8,
    "axes.titlesize": 8,
    "grid.color": "#8a8f98",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "everyformer",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
}

styled = matplotlib.rc_context(_RC)
"""decorator of every function that draws"""


@dataclass(frozen=True)
class Style:
    """The look of one member in every figure."""

    colour: str
    marker: str
    dashes: str = "-"
    named: bool = True
    """else one of many: thin and pale, without a name of its own in figures"""
    about: str = ""
    """begins the ids of its lines, by which a page shows and hides them"""

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of `Axes.plot`."""
        line = {"color": self.colour, "linestyle": self.dashes}
        if self.named:
            return {**line, "marker": self.marker, "zorder": 3}
        return {**line, "linewidth": 0.7, "alpha": 0.45, "zorder": 2}


_REST = Style("#808890", "x")
"""of what does not take part itself"""


def look(family: int, number: int) -> Style:
    """Look of the member of that number in the family of that number, both from 0: up to 16
    members of a family all differ."""
    hue = _HUES[min(family, len(_HUES) - 1)]
    marker = _MARKERS[(family + number + number // 8) % 8]
    return Style(hue[number % 2], marker, _DASHES[number // 2 % 4])


def looks_of_family() -> dict[str, tuple[str, Style]]:
    """Family and fixed look of all members and baselines, by name."""
    families: dict[str, list[str]] = {}
    for member in (*list_members(), *BASELINES):
        families.setdefault(member.group, []).append(member.name)
    return {
        name: (family, look(at, number))
        for at, (family, names) in enumerate(families.items())
        for number, name in enumerate(names)
    }


class Styles:
    """Styles of the members of a figure: fixed ones; a twin's is another of its family, and other
    names take those that are left.

    Args:
        members: what is drawn, in its order.
        named: those that stand out (default: all).
    """

    def __init__(self, members: Iterable[str], named: Iterable[str] | None = None) -> None:
        everyone, known = list(dict.fromkeys(members)), looks_of_family()
        named_members = set(everyone if named is None else named)
        every = list(dict.fromkeys(family for family, _ in known.values()))
        taken = {known[member][1] for member in everyone if member in known}
        left = (look(1 + n % 8, n // 8) for n in itertools.count())
        for member in (name for name in everyone if name not in known):
            family, usual = known.get(twin(member)[0], ("", None))
            looks = (look(every.index(family), n) for n in range(16)) if usual else left
            known[member] = family, next((one for one in looks if one not in taken), usual or _REST)
            taken.add(known[member][1])
        here = {known[member][0] for member in everyone}
        self.families: dict[str, str] = {}
        """hue of each family that takes part"""
        for family, style in known.values():
            if family and family in here:
                self.families.setdefault(family, style.colour)
        order = list(self.families)
        self._styles: dict[str, Style] = {}
        for n, member in enumerate(everyone):
            family, style = known[member]
            about = f"member{n}-group{order.index(family) if family else 'x'}-"
            self._styles[member] = replace(style, named=member in named_members, about=about)

    def __getitem__(self, member: str) -> Style:
        """Grey for what does not take part itself."""
        return self._styles.get(member, _REST)

    def titles(self) -> dict[str, str]:
        """Members by what begins the ids of their lines."""
        return {style.about: member for member, style in self._styles.items()}


@dataclass(frozen=True)
class Drawing:
    """A figure with what it shows."""

    name: str
    """of its file"""
    title: str
    figure: Figure
    caption: str


def label_decades(axis: Any, words: Callable[[float], str], base: int = 10) -> None:
    """Labels at 1, 2 and 5 of every decade, closer on a short axis; at powers of another base."""
    low, high = axis.get_view_interval()
    steps = next(steps for reach, steps in _STEPS if high / low > reach)
    axis.set_major_locator(LogLocator(base, subs=steps if base == 10 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())


def new_figure(height: float = HIGH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, figure.subplots()


def ranked_figure(names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """A figure with a line for each of ``names``, the first on top."""
    figure, axes = new_figure(height + (0.3 if len(names) <= MANY else 0.18) * len(names))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.grid(axis="y", visible=False)
    return figure, axes


@styled
def save_figure(figure: Figure, path: Path) -> Path:
    """Write as PNG, PDF or SVG, by the name's end, on white."""
    with file_written_whole(path, parents=True) as new:
        _fix_layout(figure)
        figure.savefig(new, dpi=300, facecolor="white", metadata=_UNDATED.get(path.suffix))
    return path


@styled
def svg_text(figure: Figure) -> str:
    """The figure as an <svg> element, rendered once for a file and for a page.

    Its text is of `INK`; nothing is behind it.
    """
    _fix_layout(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata=_UNDATED[".svg"])
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


def _fix_layout(figure: Figure) -> None:
    """Lay the figure out once: later drawings, which would do it twice each, keep the places."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine("none")
