"""Figures and table of `everyformer show COMPARISON`, for a paper."""

from typing import Any

from everyformer.cli.found import compared, is_comparison
from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError
from everyformer.core.wording import join_names
from everyformer.system.console import emit
from everyformer.system.files import expanded, write_text

TABLE = "table"


def draw_table(options: ShowOptions) -> int:
    """Write the table of a comparison, or of several (--others), and print where it is."""
    from everyformer.lab.report.table_text import table_text
    from everyformer.lab.report.words import question

    sources = (options.run, *options.others)
    names = [expanded(source).name for source in sources]
    if len(set(names)) < len(names):
        names = [*sources]
    every = dict(zip(names, [_required(options, source) for source in sources], strict=True))
    path = folder_of(options, expanded(options.run)) / f"{TABLE}.{options.format}"
    write_text(path, table_text(every, str(options.format)), parents=True)
    return tell(options, path, " ".join(map(question, every.values())))


def draw_figures(options: ShowOptions) -> int:
    """Draw all figures of a comparison, or the one that is named, and print where they are.

    Raises:
        ConfigError: it has no numbers for them.
    """
    from everyformer.lab.report.figures import draw_all
    from everyformer.lab.show.style import save_figure

    drawings = {drawing.name: drawing for drawing in draw_all(_required(options, options.run))}
    if not drawings:
        raise ConfigError(f"{options.run} has no figures, since no member was trained to the end")
    if options.what not in ("all", *drawings):
        raise ConfigError(
            f"{options.run} has no numbers for '{options.what}'; it has {join_names([*drawings])}"
        )
    folder, drawn = folder_of(options, expanded(options.run)), []
    for name in drawings if options.what == "all" else [options.what]:
        path = save_figure(drawings[name].figure, folder / f"{name}.{options.format}")
        drawn.append({"picture": str(path), "shows": drawings[name].caption})
        if not options.json:
            print(f"{path}\n    {drawings[name].caption}")
    if options.json:
        emit({"target": options.run, "pictures": drawn})
    return 0


def _required(options: ShowOptions, source: str) -> Any:
    """The results of the comparison in ``source``."""
    if not is_comparison(source):
        raise ConfigError(
            f"'{options.what}' is of a comparison, and '{source}' is no folder of one: "
            "`everyformer compare` makes one"
        )
    return compared(source)
