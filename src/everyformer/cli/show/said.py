"""Where a picture of `everyformer show` goes, and how it is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from everyformer.cli.console import emit
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.cli.show.options import ShowOptions


def folder_of(options: ShowOptions, run: Path) -> Path:
    """The folder that was asked for, or that of the run's pictures."""
    return run / "pictures" if options.out is None else expanded(options.out)


def tell(options: ShowOptions, path: Path, shows: str) -> int:
    """Say where the only picture is and what it shows; the exit code, 0."""
    if options.json:
        emit({"target": options.run, "pictures": [{"picture": str(path), "shows": shows}]})
    else:
        print(f"{path}\n    {shows}")
    return 0
