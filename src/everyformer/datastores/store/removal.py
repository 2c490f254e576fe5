"""Taking a document out of a store: its rows are copied past, and gone from the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from everyformer.core.errors import DataError, nearest
from everyformer.datastores.store.lock import locked
from everyformer.datastores.store.record import INDEX, ROWS, Document, bytes_needed, check_space
from everyformer.datastores.store.store import Store
from everyformer.datastores.store.writing import RowFiles, is_unfinished
from everyformer.system.files import expanded, written_whole
from everyformer.system.memory import size

COPIED = 1 << 14
"""rows at a time"""


def remove(folder: str | Path, name: str, say: Callable[[str], None]) -> None:
    """Take the document ``name`` out of the store in ``folder``: the store is then that which never
    had it, byte for byte. Its index goes, since its rows have other numbers now.

    The rest is copied and put in place of the old rows when it is whole, so that a kill at any
    moment leaves the old store or the new one; ``say`` is told what the copy needs, and what goes.

    Raises:
        DataError: there is no such document (the nearest names are offered), it is the only one
            with rows, an addition was not finished, or another process writes.
        DamagedError: the store was cut short or changed; nothing is copied from it.
        ResourceError: the disk has no room for the copy, with both numbers.
        UnsavedError: it cannot be written; the store is as it was.
    """
    folder = expanded(folder)
    with locked(folder):
        store = Store.read(folder)
        store.verify()
        if is_unfinished(folder):
            raise DataError(
                f"an addition to the store {folder} was begun and not finished: go on with that "
                "before a document is removed"
            )
        record = store.record
        if name not in record.names:
            raise DataError(
                f"the store {folder} has no document '{name}'; {nearest(name, record.names)}"
            )
        gone = store.documents[record.names.index(name)]
        left = record.count - gone.rows
        if left == 0:
            raise DataError(
                f"'{name}' is all that the store {folder} holds: remove the folder instead"
            )
        needed = bytes_needed(left, record.width, record.dtype)
        check_space(folder, needed, f"the copy without '{name}'")
        say(
            f"removing '{name}' ({gone.rows:,} of {record.count:,} rows): the rest is copied, "
            f"which needs {size(needed)} on the disk for a while"
        )
        if (folder / ROWS / INDEX).exists():
            say("the search index goes with it: build it again")
        with written_whole(folder / ROWS) as copy:
            empty = replace(record, names=(), rows=(), key_sums=(), value_sums=())
            with closing(RowFiles(copy, empty)) as files:
                for document in store.documents:
                    if document.name != name:
                        files.begin(document.name)
                        _copy(store, document, files)
                files.sync()
                files.record.write(copy)


def _copy(store: Store, document: Document, files: RowFiles) -> None:
    end = document.first + document.rows
    for first in range(document.first, end, COPIED):
        part = slice(first, min(first + COPIED, end))
        files.write(store.keys[part], store.values[part])
