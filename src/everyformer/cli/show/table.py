"""`PICTURES`: the function that draws a picture of `everyformer show`, by the picture's name."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from everyformer.cli.found import is_comparison
from everyformer.cli.messages import changed
from everyformer.cli.show.comparison import (
    PAGE,
    TABLE,
    draw_figures,
    draw_page,
    draw_table,
)
from everyformer.cli.show.curves import CURVES, draw_curves
from everyformer.cli.show.inside import draw_inside
from everyformer.cli.show.options import Format, ShowOptions
from everyformer.cli.show.saved import SAVED, draw_saved
from everyformer.core.errors import Spelled
from everyformer.core.wording import listed


class ShownPicture(NamedTuple):
    """A picture, or several that are drawn in the same way."""

    draw: Callable[[ShowOptions], int]
    reads: frozenset[str]
    """options besides run, picture, --out and --json"""
    formats: tuple[Format, ...] = ("png", "pdf", "svg")
    """the first where none is said"""


INSIDE = ShownPicture(draw_inside, frozenset({"format", "task", "text", "length"}))
"""the inside of a model, which itself says what can be drawn of it"""
COMPARED = ShownPicture(draw_figures, frozenset({"format"}))
"""the figures of a comparison"""
PICTURES: dict[str, ShownPicture] = {
    TABLE: ShownPicture(draw_table, frozenset({"format", "others"}), ("md", "tex", "csv")),
    PAGE: ShownPicture(draw_page, frozenset({"format"}), ("html", "pdf")),
    **dict.fromkeys(SAVED, ShownPicture(draw_saved, frozenset({"format"}))),
    CURVES: ShownPicture(draw_curves, frozenset({"format", "others"})),
}


def draw(options: ShowOptions) -> int:
    """Draw ``options.what`` and print where it is; the exit code.

    Raises:
        ConfigError: an option that belongs to other pictures, or a format that it is not drawn in.
    """
    picture = PICTURES.get(options.what, INSIDE)
    if picture is INSIDE and is_comparison(options.run) and _of_comparison(options.what):
        picture = COMPARED
    for name, flag in changed(options, ShowOptions(run=options.run)):
        if name not in picture.reads | {"run", "what", "out", "json"}:
            able = [f"'{other}'" for other, known in PICTURES.items() if name in known.reads]
            inside = ["pictures of the inside of a model"] * (name in INSIDE.reads)
            raise Spelled(
                f"{flag} is of {listed([*inside, *able], 'and')}, not of '{options.what}': leave "
                "it out"
            )
    if options.format is not None and options.format not in picture.formats:
        kinds = listed(picture.formats, "or")
        raise Spelled(f"'{options.what}' is written as {kinds}, not as {options.format}")
    options = replace(options, format=options.format or picture.formats[0])
    return picture.draw(options)


def _of_comparison(what: str) -> bool:
    from everyformer.lab.report.figures import FIGURES

    return what in ("all", *FIGURES)
