"""Curves: metrics.jsonl always, TensorBoard's event files where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from everyformer.core.errors import CheckpointError
from everyformer.training.storage import sync


class MetricsLog:
    """Appends rows to ``metrics.jsonl``; each row is on the disk's way before `write` returns.

    Args:
        path: the file; its folder also takes TensorBoard's files.
        step: of the checkpoint that the run goes on from. Rows beyond it are dropped, since the
            run will write them again, and so is a last row that was cut by a kill.
        evaluated: whether that checkpoint knows the evaluation at its step; if not, a row of it
            is dropped too.

    Raises:
        CheckpointError: a row cannot be written (disk full); says so.
    """

    def __init__(self, path: Path, step: int = 0, *, evaluated: bool = True) -> None:
        self.path = path
        kept = [
            row
            for row in read_metrics(path)
            if row["step"] < step + (evaluated or "evaluation" not in row)
        ]
        temporary = path.with_name(f".writing-{path.name}")
        temporary.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        sync(temporary)
        temporary.replace(path)
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
            raise CheckpointError(
                f"cannot write {self.path}: {error.strerror}; free some space and resume"
            ) from error
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
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, oldest first; a row cut short by a kill ends them."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
    return rows


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _numbers(row: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "step":
            found.append((prefix + name, float(value)))
    return found
