"""The files of one training of a comparison: what it is to do, and what it came to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everyformer.core.errors import CheckpointError
from everyformer.system.sealed import read_json, write_json
from everyformer.training.spec import RunSpec

if TYPE_CHECKING:
    from everyformer.lab.compare.results import Result

RECORD, FORMAT = "comparison.json", "everyformer-comparison"
"""the file that makes a folder a comparison's, and the format of its results"""
JOB, RESULT = "job.json", "result.json"
JOB_FORMAT, RESULT_FORMAT = "everyformer-job", "everyformer-result"


def write_job(folder: Path, run: RunSpec, fingerprint: str) -> None:
    """Leave what a job is to do in its folder; ``fingerprint`` is of the data."""
    write_json(
        folder / JOB, {"format": JOB_FORMAT, "fingerprint": fingerprint, "run": run.record()}
    )


def read_job(folder: Path) -> dict[str, Any]:
    """A job as `write_job` left it: the ``run`` as plain values, and the ``fingerprint``."""
    return read_json(folder / JOB, JOB_FORMAT)


def read_result(folder: Path) -> Result | None:
    """Result of a job; None if it did not end, or its file is damaged: it is then made again."""
    try:
        result = read_json(folder / RESULT, RESULT_FORMAT)
    except CheckpointError:
        return None
    values = {name: value for name, value in result.items() if name not in ("format", "version")}
    return cast("Result", values)


def write_result(folder: Path, result: Result) -> None:
    """Leave a job's result in its folder, whole or not at all."""
    write_json(folder / RESULT, {"format": RESULT_FORMAT, **result})
