"""A datastore: keys and what followed them, on the disk, mapped into memory when it is opened.

    with Writer.create("store", origin, width=64) as writer:
        writer.add(keys, values)            # (n, 64) and (n,), as often as needed
        writer.finish()

    store = Store.open("store", origin)
    distances, rows = Index(store).search(queries, k=32)
    store.values[rows]

Keys are vectors of numbers, values token ids. A store knows nothing of models: an `Origin` says
what its keys are from, and a store of another origin than the one that is requested is refused.
`writing` makes stores, `index` searches.
"""

import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import DataError
from everyformer.stores.store.record import (
    KEYS,
    PROGRESS,
    RECORD,
    ROWS,
    SUMMED,
    VALUE,
    VALUES,
    Origin,
    Record,
    absent,
    key_type,
)
from everyformer.system.files import expanded
from everyformer.system.machine import cores
from everyformer.system.sealed import DamagedError
from sequence_laws.memory import size


@dataclass(frozen=True, eq=False)
class Store:
    """A finished store, opened to be read; `Store.open` makes it."""

    folder: Path
    record: Record
    keys: np.ndarray
    """(count, width) float16 or float32, read from the disk where it is looked at"""
    values: np.ndarray
    """(count,) int32"""

    @classmethod
    def open(cls, folder: str | Path, origin: Origin | None = None, verify: bool = True) -> Self:
        """The store in ``folder``, which need not be writable.

        Args:
            origin: what the store must have been made with (`Origin.check`); None: anything.
            verify: read every byte and hold it against its checksum, about a second for 3 GB that
                the system holds in memory. Sizes and the record are always looked at.

        Raises:
            DataError: there is no store, it is empty, or not finished.
            DamagedError: a file is missing, cut short or changed.
            CheckpointError: of another version of the library, or of another origin.
        """
        folder = expanded(folder)
        rows = folder / ROWS
        if not (rows / RECORD).exists():
            if not (rows / PROGRESS).exists():
                raise absent(folder)
            written = Record.read_progress(rows)[0].count
            raise DataError(
                f"the store {folder} is not finished: {written:,} rows are in it so far; "
                "continue with what wrote it, or remove the folder"
            )
        record = Record.read(rows)
        if record.count == 0:
            raise DataError(f"the store {folder} is empty: make it again")
        if origin is not None:
            record.origin.check(origin, folder)
        keys = _mapped(rows / KEYS, key_type(record.dtype), (record.count, record.width))
        store = cls(folder, record, keys, _mapped(rows / VALUES, VALUE, (record.count,)))
        if verify:
            store.verify()
        return store

    def verify(self) -> None:
        """Raise `DamagedError` if any byte of keys or values is not as it was written."""
        rows = self.folder / ROWS
        with ThreadPoolExecutor(cores()) as pool:
            for name, stored, sums in (
                (KEYS, self.keys, self.record.key_sums),
                (VALUES, self.values, self.record.value_sums),
            ):
                parts = range(0, len(stored), SUMMED)
                computed = pool.map(lambda n, s=stored: zlib.crc32(s[n : n + SUMMED].data), parts)
                for n, expected, actual in zip(parts, sums, computed, strict=True):
                    if actual != expected:
                        last = min(n + SUMMED, len(stored)) - 1
                        raise DamagedError(
                            f"{rows / name} was changed or damaged after it was written, between "
                            f"row {n:,} and row {last:,}: make the store again"
                        )

    def __len__(self) -> int:
        return self.record.count

    @property
    def width(self) -> int:
        return self.record.width

    @property
    def key_tensor(self) -> Tensor:
        """The keys (count, width) as a tensor in the same memory, to be read only."""
        with warnings.catch_warnings():
            # torch has no tensors that cannot be written
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(self.keys)

    def following(self, rows: np.ndarray | Tensor) -> np.ndarray:
        """The values (...) of ``rows``; -1 for -1, as of a search that found too few."""
        at = np.asarray(rows, np.int64)
        return np.where(at < 0, -1, self.values[at.clip(0)])

    def describe(self) -> str:
        """One line: how much of what is in it."""
        record = self.record
        return (
            f"{record.count:,} keys of width {record.width} in {record.dtype}, "
            f"{size(self.keys.nbytes + self.values.nbytes)}"
        )


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    try:
        size = path.stat().st_size
        needed = int(np.prod(shape)) * dtype.itemsize
        if size < needed:
            raise DamagedError(
                f"{path} was cut short: it has {size:,} bytes of {needed:,}; make the store again"
            )
        return np.memmap(path, dtype, mode="r", shape=shape)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error
