"""Curves: metrics.jsonl always, TensorBoard's event files where it is installed."""

import importlib.util
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from everyformer.core.errors import unwritable
from everyformer.system.files import require_regular, write_text
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import DamagedError

SEALED = re.compile(rb'(.*), "crc": "([0-9a-f]{8})"\}')
"""a row of metrics.jsonl: its JSON less the closing brace, and the CRC-32 of that"""


class MetricsLog:
    """Log of a run in ``metrics.jsonl``; each row is on the disk's way before `write` returns.

    Args:
        path: the file; its folder also takes TensorBoard's files.
        step: of the checkpoint that the run goes on from. Rows beyond it are dropped, since the
            run will write them again, and so is a last row that was cut by a kill.
        evaluated: whether that checkpoint knows the evaluation at its step; if not, a row of it
            is dropped too.

    Raises:
        DamagedError: a row before that checkpoint is not as it was written.
        UnsavedError: a row cannot be written (disk full); says so.
    """

    def __init__(self, path: Path, step: int = 0, *, evaluated: bool = True) -> None:
        self.path = path
        rows = [
            row
            for row in read_metrics(path, step)
            if row["step"] < step + (evaluated or "evaluation" not in row)
        ]
        self.last = max((row["step"] for row in rows), default=0)
        """the step of the last row that the file began with"""
        write_text(path, "".join(_line(row) for row in rows))
        self._file = path.open("a", encoding="utf-8")
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(path.parent / "tensorboard"), purge_step=step + 1)

    def write(self, row: dict[str, Any]) -> None:
        """Append ``row``, which has a ``step``."""
        try:
            self._file.write(_line(row))
            self._file.flush()
        except OSError as error:
            raise unwritable(self.path, error) from error
        if self._board is not None:
            for name, value in _numbers(row):
                self._board.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Put all rows on the disk, so that a checkpoint is never ahead of them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write what is left and let go of the files."""
        self._file.close()
        if self._board is not None:
            # its rows are in the metrics too, whose refusal is raised
            with suppress(OSError):
                self._board.close()


def read_metrics(path: Path, step: int | None = None) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, oldest first; a row cut short by a kill ends them.

    ``step`` is the last one that is wanted: what comes after a later row may be damaged.

    Raises:
        DamagedError: a line is not as it was written; the message names it.
    """
    require_regular(path)
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows = [_row(line) for line in lines]
    if (last := _row(rest) or _row(rest[:-1])) is not None:
        rows.append(last)  # whole, but for its line's end
    results: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        if row is not None:
            results.append(row)
        elif step is None or not results or results[-1]["step"] <= step:
            raise DamagedError(
                f"line {number} of {path} was changed or damaged after it was written: put back a "
                "copy of the file, or remove that line to go on without its row"
            )
    return results


def _row(line: bytes) -> dict[str, Any] | None:
    """A line's row, for which its sum vouches; None if damaged."""
    parts = SEALED.fullmatch(line)
    if parts is None or zlib.crc32(parts[1]) != int(parts[2], 16):
        return None
    try:
        row = from_json(parts[1] + b"}")
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _line(row: dict[str, Any]) -> str:
    text = to_json(row)[:-1]
    return f'{text}, "crc": "{zlib.crc32(text.encode()):08x}"}}\n'


def _numbers(row: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    results: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, dict):
            results += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "step":
            results.append((prefix + name, float(value)))
    return results
