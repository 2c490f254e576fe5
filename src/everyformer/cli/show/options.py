"""The options of `everyformer show`, where its pictures go, and how each is reported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from everyformer.core.bounds import Bounds
from everyformer.core.config import Options
from everyformer.system.console import emit
from everyformer.system.files import expanded

Format = Literal["png", "pdf", "svg", "md", "tex", "csv"]


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """The words of `everyformer show`."""

    run: tyro.conf.Positional[str]
    """directory of a trained run, folder of a saved model or of a comparison, or a member's name to
    see what it starts from"""
    what: tyro.conf.Positional[str] = "all"
    """one picture: weights, masks, encodings, ..., of classifiers confusion and calibration (a name
    that there is not lists all that the model knows), or all that applies; or certificate, what a
    calibration has found;
    pareto, loss against layers as a search of thresholds (eval --search-exits) has found;
    curves, how trainings went, of several seeds (--others) their mean; of a comparison all is its
    figures (quality, cost-training, ...), table its table, and any other name a picture of its
    best run"""
    task: Literal["lm", "mlm", "classify-image", "pixels"] | None = None
    """what an untrained member is made for; mlm reads both sides (default: lm, or what it can)"""
    out: str | None = None
    """folder of the pictures (default: RUN/pictures or pictures/MEMBER)"""
    format: Format | None = None
    """kind of files: of pictures png, pdf or svg, of a table md, tex (booktabs) or csv (default:
    the first of these)"""
    others: tuple[str, ...] = ()
    """curves: further runs, or folders of comparisons, that are drawn too; those that differ by
    their seeds alone are one curve with its interval; table: further comparisons, whose rows
    follow"""
    text: str | None = None
    """what the model reads (default: a piece of the run's validation data; a saved model reads
    random tokens)"""
    length: Annotated[int, Bounds(1, 65536)] | None = None
    """tokens read, or positions drawn (default: 64 tokens, 32 positions, 16 in masks)"""
    json: bool = False
    """machine output"""


def folder_of(options: ShowOptions, run: Path) -> Path:
    """The folder that was given, or that of the run's pictures."""
    return run / "pictures" if options.out is None else expanded(options.out)


def tell(options: ShowOptions, path: Path, shows: str) -> int:
    """Say where the only picture is and what it shows; the exit code, 0."""
    if options.json:
        emit({"target": options.run, "pictures": [{"picture": str(path), "shows": shows}]})
    else:
        print(f"{path}\n    {shows}")
    return 0
