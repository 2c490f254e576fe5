"""A folder of things that are made once: written to a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everyformer.core.errors import DataError

FORMAT = 1
"""Raised when what is written changes, so that older folders are not read."""


def cache_root(chosen: str | None) -> Path:
    """The folder for encoded corpora: the chosen one, else the environment's, else the user's."""
    if chosen:
        return Path(chosen).expanduser()
    if given := os.environ.get("EVERYFORMER_CACHE"):
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "everyformer"


def cached(root: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict]:
    """The folder ``key`` below ``root`` and its facts, made by ``build`` unless it is there whole.

    ``build`` writes files into the folder it is given and returns the facts, plain values. A
    folder with a file missing or cut short is made anew. Processes that build the same at once do
    no harm: the first one's stays.

    Raises:
        DataError: the folder cannot be written (disk full, no permission); nothing is left behind.
    """
    final = root / key
    facts = _whole(final)
    if facts is not None:
        return final, facts
    temporary: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=".tmp", dir=root))
        facts = build(temporary)
        sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
        text = json.dumps({"facts": facts, "sizes": sizes})
        (temporary / "facts.json").write_text(text, encoding="utf-8")
        _put(temporary, final)
    except OSError as error:
        raise DataError(
            f"cannot write the data cache '{root}': {error.strerror or error}. Free some space or "
            "choose another folder with --data.cache"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return final, facts


def _whole(folder: Path) -> dict | None:
    """The facts of a complete folder, or None."""
    try:
        saved = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        if all((folder / name).stat().st_size == size for name, size in saved["sizes"].items()):
            return saved["facts"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _put(temporary: Path, final: Path) -> None:
    """Rename into place; a broken folder there makes room, a whole one of another process stays."""
    if final.exists() and _whole(final) is None:
        shutil.rmtree(final)
    try:
        temporary.rename(final)
    except OSError:
        if _whole(final) is None:
            raise
