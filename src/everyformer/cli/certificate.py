"""What `everyformer show RUN certificate` does: pictures of what a calibration has found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.cli.shown import folder_of, tell
from everyformer.core.errors import ConfigError

if TYPE_CHECKING:
    from everyformer.cli.show_options import ShowOptions

CERTIFICATE = "certificate"


def show_certificate(options: ShowOptions) -> int:
    """Draw, and print where it is.

    Raises:
        ConfigError: the run was not calibrated.
    """
    from everyformer.cli.calibrate import FORMAT, RECORD
    from everyformer.cli.exits import CERTIFICATE as FILE
    from everyformer.cli.trained import open_run
    from everyformer.core.sealed import read_json
    from everyformer.guarantees.certificate import Certificate
    from everyformer.report.certificate import draw_certificate, realised

    if options.text is not None or options.task is not None or options.length is not None:
        raise ConfigError(
            f"'{CERTIFICATE}' shows what a calibration has found: leave out --text, --task and "
            "--length"
        )
    trained = open_run(options.run)
    if not (trained.path / FILE).exists():
        raise ConfigError(
            f"{options.run} has no certificate: everyformer calibrate {options.run} makes one"
        )
    found = Certificate.read(trained.path / FILE)
    record = read_json(trained.path / RECORD, FORMAT)
    folder = folder_of(options, trained.path)
    path = draw_certificate(record, found.threshold, folder / f"{CERTIFICATE}.{options.format}")
    shares = ", ".join(f"{one.violations:.0%} at {one.delta:g}" for one in realised(record))
    told = found.statement
    if shares:
        told += f" Of 100 splits of the prompts more than the allowed risk came to: {shares}."
    return tell(options, path, told)
