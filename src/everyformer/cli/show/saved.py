"""Pictures of what a run has saved about its early exits: its certificate, its search."""

from collections.abc import Callable
from pathlib import Path

from everyformer.cli.exits import CALIBRATION, CALIBRATION_FORMAT, CERTIFICATE, RECORD
from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command

Picture = tuple[Path, str]
"""a picture, and what it shows"""


def draw_saved(options: ShowOptions) -> int:
    """Draw one of `SAVED`, and print where it is.

    Raises:
        ConfigError: the run has none.
    """
    from everyformer.cli.trained import open_run

    trained = open_run(options.run)
    path = folder_of(options, trained.path) / f"{options.what}.{options.format}"
    return tell(options, *SAVED[options.what](trained.path, path))


def _certificate(run: Path, path: Path) -> Picture:
    from everyformer.lab.exits.certificate import Certificate
    from everyformer.lab.report.exits import draw_certificate, realised
    from everyformer.system.sealed import read_json

    _require(run / CERTIFICATE, "certificate", f"calibrate {run}")
    certificate = Certificate.read(run / CERTIFICATE)
    record = read_json(run / CALIBRATION, CALIBRATION_FORMAT)
    draw_certificate(record, certificate.threshold, path)
    shares = ", ".join(f"{one.violations:.0%} at {one.delta:g}" for one in realised(record))
    shows = certificate.statement
    if shares and certificate.saves:
        shows += f" Of 100 splits of the prompts more than the allowed risk came to: {shares}."
    return path, shows


def _pareto(run: Path, path: Path) -> Picture:
    from everyformer.lab.exits.search import pareto, read_tries
    from everyformer.lab.report.exits import draw_search

    _require(run / RECORD, "search of thresholds", f"eval {run} --search-exits 20")
    tried = read_tries(run / RECORD)
    front = pareto(tried)
    draw_search(tried, front, path)
    least, most = front[0], front[-1]
    return path, (
        f"Of {len(tried)} settings {len(front)} are beaten by none: from {least.depth:.2f} layers "
        f"and a loss of {least.loss:.4f} to {most.depth:.2f} and {most.loss:.4f}."
    )


def _require(file: Path, what: str, words: str) -> None:
    if not file.exists():
        raise ConfigError(f"{file.parent} has no {what}: {command(words)} makes one")


SAVED: dict[str, Callable[[Path, Path], Picture]] = {"certificate": _certificate, "pareto": _pareto}
