"""Cached folders: written once, and checked against their sums whenever they are opened."""

import hashlib
import shutil
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.core.errors import CheckpointError, DataError, UnsavedError
from everyformer.system.files import cache_folder, expanded, workspace
from everyformer.system.plain import to_json
from everyformer.system.sealed import check_sums, checksums, read_json, write_json

FORMAT = 1
"""Raised when what is written changes, so that older folders are not read."""
FACTS, KIND = "facts.json", "everyformer-data"


def cache_root(chosen: str | None) -> Path:
    """The folder for encoded corpora: the chosen one, else the environment's, else the user's."""
    return expanded(chosen) if chosen else cache_folder()


def digest(*parts: Any) -> str:
    """A short hash of plain values and bytes, the same on every machine."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else to_json(part, sort_keys=True).encode()
        result.update(len(raw).to_bytes(8, "little") + raw)
    return result.hexdigest()


def cached(
    root: Path,
    key: str,
    build: Callable[[Path], dict[str, Any]],
    stamp: Callable[[], str] = lambda: "",
) -> tuple[Path, dict]:
    """The folder ``key`` below ``root`` and its facts, written by ``build`` where it is not whole.

    ``build`` writes files into a folder and returns the facts, plain values. A
    folder with a file missing, cut short or damaged is written again. Processes that build the same
    at once do no harm: the first one's stays. ``stamp`` tells whether the source is still the same.
    """
    final = root / key
    damaged = final.exists()
    facts = _whole(final)
    if facts is not None:
        return final, facts
    try:
        if damaged:
            shutil.rmtree(final)
        root.mkdir(parents=True, exist_ok=True)
        with workspace(root) as temporary:
            folder = temporary / "new" / key
            folder.mkdir()
            before = stamp()
            facts = build(folder)
            if stamp() != before:
                raise DataError("the data was changed while it was read: start again")
            write_json(folder / FACTS, {"format": KIND, "facts": facts, "sums": checksums(folder)})
            try:
                folder.rename(final)
            except OSError:
                # another process has built the same: its folder stays, which it has opened
                if not final.is_dir():
                    raise
    except (OSError, UnsavedError) as error:
        reason = getattr(error, "strerror", error)
        raise DataError(
            f"cannot write the data cache '{root}': {reason}. Free some space or choose another "
            "folder with `data.cache`"
        ) from error
    return final, facts


def write_tokens(folder: Path, sequences: Iterable[np.ndarray]) -> tuple[np.ndarray, bytes]:
    """Sequences of tokens in one file, ``tokens.bin``, one after the other.

    Returns:
        (sequences + 1,) int64, where each begins in it; and a hash of all.
    """
    bounds, checksum = array("q", [0]), hashlib.blake2b(digest_size=16)
    with (folder / "tokens.bin").open("wb") as file:
        for tokens in sequences:
            raw = tokens.tobytes()
            file.write(raw)
            checksum.update(raw)
            bounds.append(bounds[-1] + len(tokens))
    return np.array(bounds, dtype=np.int64), checksum.digest()


def _whole(folder: Path) -> dict | None:
    """The facts of a folder whose every file is as it was written, or None.

    Every byte is read: about a second for 1.5 GB that the system holds in memory.
    """
    try:
        saved = read_json(folder / FACTS, KIND)
        check_sums(folder, saved["sums"])
    except (CheckpointError, OSError):
        return None
    return saved["facts"]
