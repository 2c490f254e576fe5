"""`everyformer show RUN|MODEL|COMPARISON|MEMBER PICTURE`: a picture, or what goes into a paper."""

from collections.abc import Sequence

from everyformer.cli.parsing import parse
from everyformer.cli.show.options import ShowOptions
from everyformer.cli.show.table import draw
from everyformer.system.files import expanded, require_no_file


def run(words: Sequence[str]) -> int:
    """Draw, and print each file with what it shows."""
    options = parse(
        ShowOptions,
        words,
        verb="show",
        about="Draw what a run has learned, what a comparison found, or what a member starts from.",
        examples=(
            "everyformer show attention encodings --format svg --out pictures",
            "everyformer show runs/compare all --format pdf",
        ),
    )
    if options.out is not None:
        require_no_file(expanded(options.out))
    return draw(options)
