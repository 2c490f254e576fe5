"""One writer at a time: the lock of a store, and how readers notice that it is taken.

The lock is one of the system's on a file in the store's folder; it ends with its process. Readers
take none and need not write: they ask whether it is taken, which a folder that cannot be written
allows too. A writer on another machine that shares the folder is not seen where its file system
does not share locks; what it is about to add lies behind the rows that are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from everyformer.core.errors import DataError, unwritable

try:
    import fcntl
except ImportError:  # on Windows readers do not ask
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PATIENCE = 0.5
"""seconds that a writer waits, since readers hold the lock while they ask"""


def lock(folder: Path) -> FileLock:
    """The lock of the store in ``folder``, taken; its ``release`` gives it back.

    Raises:
        DataError: another process has it, or there is no such folder.
        UnsavedError: the folder cannot be written.
    """
    if not folder.is_dir():
        raise absent(folder)
    taken = FileLock(folder / LOCK)
    try:
        taken.acquire(timeout=PATIENCE)
    except Timeout as error:
        raise in_use(folder) from error
    except OSError as error:
        raise unwritable(folder, error) from error
    return taken


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """`lock` for a block."""
    taken = lock(folder)
    try:
        yield
    finally:
        taken.release()


def is_locked(folder: Path) -> bool:
    """True while a process writes into the store in ``folder``."""
    if fcntl is None:
        return False
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:  # nobody ever wrote here under this name
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)
    return False


def absent(folder: Path) -> DataError:
    return DataError(f"there is no store in {folder}: give the folder of one, or make it")


def in_use(folder: Path) -> DataError:
    return DataError(
        f"the store {folder} is being written by another process: wait for that to end, or choose "
        "another store"
    )
