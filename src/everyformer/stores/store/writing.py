"""Writing a store: rows are added at the end, and survive a kill up to the last commit.

Rows are written behind those that are committed; `Writer.commit` puts them on the disk and then
replaces the record of what is there, in which the caller's cursor stands. Whoever resumes gets that
cursor back, and files cut to that record, so that going on gives the bytes of one go.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BufferedWriter
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from filelock import AcquireReturnProxy
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError, ShapeError, unwritable
from everyformer.stores.store.record import (
    KEYS,
    PROGRESS,
    RECORD,
    ROWS,
    VALUE,
    VALUES,
    Dtype,
    Origin,
    Record,
    add_sums,
    bytes_needed,
    check_space,
    key_type,
    lock,
)
from everyformer.system.files import expanded, require_no_file, sync
from everyformer.system.sealed import DamagedError

LARGEST_VALUE = np.iinfo(VALUE).max


class Writer:
    """An open store to write, made by `create` or `resume`; a context manager.

    A writer that is left without `finish` (an error, Ctrl-C, a kill) keeps what was committed, and
    `resume` continues there.

    Raises, whatever is called:
        DataError: another process writes into the store.
        UnsavedError: the disk is full or cannot be written; what was committed stays.
    """

    cursor: Any
    """of the last commit; None: nothing was committed yet"""

    def __init__(
        self, folder: Path, record: Record, cursor: Any, taken: AcquireReturnProxy
    ) -> None:
        self.folder, self.cursor = folder, cursor
        self.count = self._committed = record.count
        """rows so far"""
        self._lock = taken.lock
        self._start = record
        self._sums = list(record.key_sums), list(record.value_sums)
        self._files: list[BufferedWriter] = []
        with _translated(folder):
            for path, width in self._places():
                self._files.append(path.open("ab"))
                if self._files[-1].tell() < record.count * width:
                    self._close_files()
                    raise DamagedError(
                        f"{path} was cut short after it was written: make the store again"
                    )
                self._files[-1].truncate(record.count * width)

    @classmethod
    def create(
        cls, folder: str | Path, origin: Origin, width: int, dtype: Dtype = "float16", rows: int = 0
    ) -> Self:
        """A new store in ``folder``, which has none yet.

        Args:
            width: numbers of a key. dtype: of the keys on the disk.
            rows: how many are expected; the disk must have room for them (`check_space`).

        Raises:
            DataError: there is a store already, finished or not.
            ResourceError: the disk has too little room, with both numbers.
        """
        folder = expanded(folder)
        if width < 1:
            raise ConfigError(f"the width of keys must be at least 1, not {width}")
        record = Record(origin, width, dtype)
        needed = bytes_needed(rows, width, dtype)
        check_space(folder, needed, f"a store of {rows:,} keys of width {width} in {dtype}")
        require_no_file(folder)
        with _translated(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder) as taken:
            if is_finished(folder) or is_unfinished(folder):
                raise DataError(
                    f"there is a store in {folder} already: continue it if it is not finished, "
                    "remove it, or choose another folder"
                )
            (folder / ROWS).mkdir(exist_ok=True)
            record.write_progress(folder / ROWS, None)
            return cls(folder, record, None, taken)

    @classmethod
    def resume(cls, folder: str | Path, origin: Origin) -> Self:
        """Go on with a store that was not finished: all of the last commit is there, and nothing
        after it.

        Raises:
            DataError: there is none, or it is finished.
            CheckpointError: it was started with another origin.
        """
        folder = expanded(folder)
        with _locked(folder) as taken:
            if not is_unfinished(folder):
                raise DataError(
                    f"the store {folder} is finished: there is nothing to continue"
                    if is_finished(folder)
                    else f"there is no store in {folder} to continue with: make it"
                )
            record, cursor = Record.read_progress(folder / ROWS)
            record.origin.check(origin, folder, windows=True)
            return cls(folder, record, cursor, taken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def record(self) -> Record:
        """Record of all rows so far, committed or not."""
        return replace(
            self._start,
            count=self.count,
            key_sums=tuple(self._sums[0]),
            value_sums=tuple(self._sums[1]),
        )

    def add(self, keys: Tensor | np.ndarray, values: Tensor | np.ndarray) -> None:
        """Rows: ``keys`` (n, width) of floats, ``values`` (n,) of whole numbers.

        Raises:
            ShapeError: other shapes or types.
            DataError: a key is not finite in the type of the store, or a value does not fit into
                0 to 2,147,483,647; nothing of the call is written.
        """
        with _translated(self.folder):
            for n, rows in enumerate(self._checked(keys, values)):
                self._files[n].write(rows.data)
                add_sums(self._sums[n], self.count, rows)
        self.count += len(keys)

    def commit(self, cursor: Any) -> None:
        """Put all rows so far on the disk, with the caller's ``cursor``, plain values of JSON."""
        with _translated(self.folder):
            self._sync()
            self.record.write_progress(self.folder / ROWS, cursor)
        self.cursor, self._committed = cursor, self.count

    def finish(self) -> None:
        """Put all rows on the disk and let the store be read; the writer is closed.

        Raises:
            DataError: no row was added.
        """
        if self.count == 0:
            raise DataError(f"the store {self.folder} would be empty: add text to it")
        with _translated(self.folder):
            self._sync()
            self.record.write(self.folder / ROWS)
            self._committed = self.count
            (self.folder / ROWS / PROGRESS).unlink()
            sync(self.folder / ROWS)
        self.close()

    def close(self) -> None:
        """Let other processes have the store; what was not committed is gone."""
        if not self._lock.is_locked:
            return
        self._close_files()
        with suppress(OSError):  # then it is cut when it is resumed
            for path, width in self._places():
                os.truncate(path, self._committed * width)
            if not self._committed:
                (self.folder / ROWS / PROGRESS).unlink(missing_ok=True)
        self._lock.release()

    def _places(self) -> tuple[tuple[Path, int], ...]:
        """The files of keys and of values, and the bytes of a row in each."""
        rows = self.folder / ROWS
        return (rows / KEYS, self._start.key_bytes), (rows / VALUES, VALUE.itemsize)

    def _sync(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def _close_files(self) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk, of which a write has told
                file.close()

    def _checked(
        self, keys: Tensor | np.ndarray, values: Tensor | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        what = f"behind row {self.count:,}"
        width, dtype = self._start.width, key_type(self._start.dtype)
        floats, ids = _array(keys), _array(values)
        if floats.ndim != 2 or floats.shape[1] != width or floats.dtype.kind != "f":
            raise ShapeError(
                f"{what}: keys must be floats of shape (n, {width}), not {floats.dtype} of "
                f"{floats.shape}"
            )
        if ids.shape != floats.shape[:1] or ids.dtype.kind not in "iu":
            raise ShapeError(
                f"{what}: values must be {len(floats)} whole numbers, one a key, not {ids.dtype} "
                f"of {ids.shape}"
            )
        with np.errstate(over="ignore"):
            stored = floats.astype(dtype)
        if not np.isfinite(stored).all():
            row = int((~np.isfinite(stored)).any(-1).argmax())
            if np.isfinite(floats[row]).all():
                raise DataError(
                    f"{what}: a key has {np.abs(floats[row]).max():,.0f}, and {dtype.name} holds "
                    f"numbers up to {np.finfo(dtype).max:,.0f}: store keys as float32 "
                    "(`precision=float32`)"
                )
            raise DataError(
                f"{what}: its key {row:,} of those given is not finite: look at the model that "
                "computes it"
            )
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= LARGEST_VALUE:
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise DataError(
                f"{what}: values are whole numbers from 0 to {LARGEST_VALUE:,}, not {wrong:,}"
            )
        return np.ascontiguousarray(stored), np.ascontiguousarray(ids, VALUE)


def is_finished(folder: str | Path) -> bool:
    """True where ``folder`` holds a store that can be read."""
    return (expanded(folder) / ROWS / RECORD).exists()


def is_unfinished(folder: str | Path) -> bool:
    """True where ``folder`` holds a store that `Writer.resume` continues."""
    return (expanded(folder) / ROWS / PROGRESS).exists()


def _array(values: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        # numpy has no bfloat16
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)


@contextmanager
def _locked(folder: Path) -> Iterator[AcquireReturnProxy]:
    """The lock of a store's writers, which is kept unless the block fails."""
    taken = lock(folder)
    try:
        with _translated(folder):
            yield taken
    except BaseException:
        taken.lock.release()
        raise


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error
