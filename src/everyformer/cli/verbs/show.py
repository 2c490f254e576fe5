"""`everyformer show RUN|MODEL|COMPARISON|MEMBER PICTURE`: a picture, or what goes into a paper."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

from everyformer.cli.found import is_comparison
from everyformer.cli.names import spelled
from everyformer.cli.parsing import verb
from everyformer.cli.show.comparison import TABLE, draw_figures, draw_table
from everyformer.cli.show.curves import CURVES, draw_curves
from everyformer.cli.show.inside import draw_inside
from everyformer.cli.show.options import Format, ShowOptions
from everyformer.cli.show.saved import SAVED, draw_saved
from everyformer.core.errors import ConfigError
from everyformer.core.wording import join_names
from everyformer.system.files import expanded, require_no_file


class ShownPicture(NamedTuple):
    """A picture, or several that are drawn in the same way."""

    draw: Callable[[ShowOptions], int]
    reads: frozenset[str]
    """options besides run, picture, --out and --json"""
    formats: tuple[Format, ...] = ("png", "pdf", "svg")
    """the first by default"""


INSIDE = ShownPicture(draw_inside, frozenset({"format", "task", "text", "length"}))
"""the inside of a model, which itself lists what can be drawn of it"""
COMPARED = ShownPicture(draw_figures, frozenset({"format"}))
"""the figures of a comparison"""
PICTURES: dict[str, ShownPicture] = {
    TABLE: ShownPicture(draw_table, frozenset({"format", "others"}), ("md", "tex", "csv")),
    **dict.fromkeys(SAVED, ShownPicture(draw_saved, frozenset({"format"}))),
    CURVES: ShownPicture(draw_curves, frozenset({"format", "others"})),
}


@verb(
    ShowOptions,
    about="Draw what a run has learned, what a comparison found, or what a member starts from.",
    examples=(
        "everyformer show attention encodings --format svg --out pictures",
        "everyformer show runs/compare all --format pdf",
    ),
)
def run(options: ShowOptions) -> int:
    """Draw, and print each file with what it shows; an option of other pictures is refused."""
    if options.out is not None:
        require_no_file(expanded(options.out))
    picture = PICTURES.get(options.what, INSIDE)
    if picture is INSIDE and is_comparison(options.run) and _of_comparison(options.what):
        picture = COMPARED
    usual = ShowOptions(run=options.run)
    for name in (field.name for field in fields(options)):
        changed = getattr(options, name) != getattr(usual, name)
        if changed and name not in picture.reads | {"run", "what", "out", "json"}:
            able = [f"'{other}'" for other, known in PICTURES.items() if name in known.reads]
            inside = ["pictures of the inside of a model"] * (name in INSIDE.reads)
            raise ConfigError(
                f"{spelled(f'--{name}')} is of {join_names([*inside, *able], 'and')}, not of "
                f"'{options.what}': leave it out"
            )
    if options.format is not None and options.format not in picture.formats:
        kinds = join_names(picture.formats, "or")
        raise ConfigError(f"'{options.what}' is written as {kinds}, not as {options.format}")
    options = replace(options, format=options.format or picture.formats[0])
    return picture.draw(options)


def _of_comparison(what: str) -> bool:
    from everyformer.lab.report.figures import FIGURES

    return what in ("all", *FIGURES)
