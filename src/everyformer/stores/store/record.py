"""The record of a store: the origin of its keys, and the checksums of its rows.

STORE/.lock                  held by the process that writes
STORE/rows/store.json        the record, sealed; there is none before the store is finished
STORE/rows/keys.bin          (count, width) float16 or float32, row major, little endian
STORE/rows/values.bin        (count,) int32
STORE/rows/progress.json     while rows are added: the record so far, and the writer's cursor
"""

from __future__ import annotations

import shutil
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout

from everyformer.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ResourceError,
    unwritable,
)
from everyformer.core.wording import join_names
from everyformer.system.sealed import read_json, write_json
from sequence_laws.memory import size

ROWS, RECORD, PROGRESS = "rows", "store.json", "progress.json"
KEYS, VALUES, LOCK = "keys.bin", "values.bin", ".lock"
FORMAT, PROGRESS_FORMAT = "everyformer-store", "everyformer-store-progress"
SUMMED = 1 << 16
"""rows of a checksum"""

Dtype = Literal["float16", "float32"]
VALUE = np.dtype("<i4")


@dataclass(frozen=True)
class Origin:
    """Origin of the keys of a store; keys of different origins cannot be compared."""

    model: str
    """fingerprint of the weights"""
    tokenizer: str
    """fingerprint of the tokenizer"""
    tap: str
    """what of the model the keys are, as "ffn-input:-1" """
    context: int
    """the most tokens that a key was computed from"""
    stride: int
    """by how many tokens the windows of a text moved on"""
    run: str = ""
    """where the model lay, for messages"""

    def check(
        self, other: Origin, folder: Path, *, windows: bool = False, taps: bool = True
    ) -> None:
        """Refuse to read a store of this origin as one of ``other``.

        Args:
            windows: context and stride must be equal too, as where more rows follow.
            taps: False where it is not known yet whether the model has such a tap.

        Raises:
            CheckpointError: names what differs: model, tokenizer, tap, context or stride.
        """
        names = ["model", "tokenizer"] + ["tap"] * taps + ["context", "stride"] * windows
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing:
            by = f" by the model of {self.run}" if self.run else ""
            details = [
                f"its {name} is {getattr(self, name)} and not {getattr(other, name)}"
                for name in differing
            ]
            raise CheckpointError(
                f"the store {folder} was made{by} with another {join_names(differing)}: "
                f"{join_names(details)}. Take the one that it was made with, or make a store with "
                "this one"
            )


@dataclass(frozen=True)
class Record:
    """Contents of a store: rows and their checksums."""

    origin: Origin
    width: int
    """numbers of a key"""
    dtype: Dtype
    """of the keys"""
    count: int = 0
    """rows"""
    key_sums: tuple[int, ...] = ()
    """crc32 of every `SUMMED` rows of keys; the last may be of fewer"""
    value_sums: tuple[int, ...] = ()

    @property
    def key_bytes(self) -> int:
        """of a row"""
        return self.width * key_type(self.dtype).itemsize

    def write(self, rows: Path) -> None:
        """Into the folder of a finished store."""
        write_json(rows / RECORD, {"format": FORMAT, **asdict(self)})

    def write_progress(self, rows: Path, cursor: Any) -> None:
        """Into the folder of a store that is being written."""
        values = {"format": PROGRESS_FORMAT, **asdict(self), "cursor": cursor}
        write_json(rows / PROGRESS, values)

    @classmethod
    def read(cls, rows: Path) -> Self:
        """Raises `DamagedError` and `CheckpointError` as `everyformer.system.sealed.read_json`."""
        return cls._of(read_json(rows / RECORD, FORMAT))

    @classmethod
    def read_progress(cls, rows: Path) -> tuple[Self, Any]:
        """The record of what was committed, and the cursor."""
        values = read_json(rows / PROGRESS, PROGRESS_FORMAT)
        return cls._of(values), values["cursor"]

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        # earlier versions kept the rows of each document
        values = {"count": sum(values.get("rows", ())), **values}
        taken = {f.name: values[f.name] for f in fields(cls)}
        lists = {name: tuple(v) for name, v in taken.items() if isinstance(v, list)}
        return cls(**taken | lists | {"origin": Origin(**taken["origin"])})


def lock(folder: Path) -> AcquireReturnProxy:
    """The lock of the writers of the store in ``folder``, taken, as a context manager that gives it
    back. It is the system's, so it ends with its process; readers need none.

    Raises:
        DataError: another process has it, or there is no such folder.
        UnsavedError: the folder cannot be written.
    """
    if not folder.is_dir():
        raise absent(folder)
    try:
        return FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout as error:
        raise DataError(
            f"the store {folder} is being written by another process: wait for that to end, or "
            "choose another store"
        ) from error
    except OSError as error:
        raise unwritable(folder, error) from error


def absent(folder: Path) -> DataError:
    """The error where there is no store."""
    return DataError(f"there is no store in {folder}: give the folder of one, or make it")


def key_type(dtype: str) -> np.dtype:
    """The type of numbers of keys.

    Raises:
        ConfigError: it is neither float16 nor float32.
    """
    if dtype not in get_args(Dtype):
        raise ConfigError(
            f"keys are stored as {join_names(get_args(Dtype), 'or')}, not as '{dtype}'"
        )
    return np.dtype(dtype).newbyteorder("<")


def add_sums(sums: list[int], before: int, rows: np.ndarray) -> None:
    """Go on with the ``sums`` of ``before`` rows over ``rows``."""
    taken = 0
    while taken < len(rows):
        filled = (before + taken) % SUMMED
        part = rows[taken : taken + SUMMED - filled]
        sums.append(zlib.crc32(part.data, sums.pop() if filled else 0))
        taken += len(part)


def bytes_needed(rows: int, width: int, dtype: str) -> int:
    """Bytes of disk that ``rows`` keys of ``width`` numbers and their values take."""
    return rows * (width * key_type(dtype).itemsize + VALUE.itemsize)


def check_space(folder: Path, needed: int, what: str) -> None:
    """Refuse ``what`` before it starts, if the disk of ``folder`` has not ``needed`` bytes left.

    Raises:
        ResourceError: with both numbers.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ResourceError(
            f"{what} needs {size(needed)} on the disk of {folder}, but {size(free)} are free: free "
            "some space, or choose another place"
        )
