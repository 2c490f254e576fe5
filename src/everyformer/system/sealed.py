"""Checksums of everything that is read back: JSON that seals itself, and sums over files.

A cut, flipped or edited file is noticed when it is read, and named.
"""

import hashlib
from pathlib import Path
from typing import Any

from everyformer.core.errors import CheckpointError
from everyformer.system.files import require_regular, write_text
from everyformer.system.plain import from_json, to_json

VERSION, OLDEST = 1, 1
"""of the layout of saved files: the one that is written, and the oldest that is read. Whoever
changes what a file holds raises the first, and gives `read_json` the step that brings older values
to today's form, or raises the second too"""


class DamagedError(CheckpointError):
    """A saved file is missing, cut short or changed."""


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write ``values`` with a digest of themselves; a reader sees the old file or the new one."""
    sealed = from_json(to_json(values | {"version": VERSION}, default=str))
    sealed["digest"] = _digest(sealed)
    write_text(path, to_json(sealed, indent=1) + "\n")


def read_json(path: Path, expected_format: str) -> dict[str, Any]:
    """The values that `write_json` wrote.

    Raises:
        DamagedError: the file is missing, is not JSON, or differs from what was written.
        CheckpointError: another format, or a version that only another library reads.
    """
    require_regular(path)
    try:
        values = from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or "format" not in values:
        raise DamagedError(f"{path} was not written by everyformer, or is damaged")
    intact = values.pop("digest", None) == _digest(values)
    version = values.get("version")
    if isinstance(version, int) and not OLDEST <= version <= VERSION:
        mend = "upgrade it with: pip install --upgrade everyformer"
        if version < OLDEST:
            mend = "make the file again, or read it with the everyformer that wrote it"
        raise (CheckpointError if intact else DamagedError)(
            f"{path} has format version {version}, but this everyformer reads {OLDEST} to "
            f"{VERSION}: {mend}"
        )
    if not intact:
        raise DamagedError(f"{path} was changed or damaged after it was written")
    if values["format"] != expected_format:
        raise CheckpointError(
            f"{path} is of format '{values['format']}'; '{expected_format}' is needed here"
        )
    return values


def _digest(values: dict[str, Any]) -> str:
    plain = to_json(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def checksums(folder: Path, pattern: str = "*") -> dict[str, str]:
    """sha256 of the files of ``folder`` with names like ``pattern``, by name."""
    return {path.name: _sha256(path) for path in sorted(folder.glob(pattern))}


def check_sums(folder: Path, expected: dict[str, str]) -> None:
    """Raise `DamagedError` naming the first file of ``folder`` that is not as it was written."""
    for name, digest in expected.items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
        if _sha256(path) != digest:
            raise DamagedError(f"{path} was cut short or damaged: its sha256 does not match")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
