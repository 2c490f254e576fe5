"""The one way in which files are written: whole or not at all, whatever befalls process or disk.

What is made lies in a hidden folder next to its place until it is complete and on the disk; then it
is renamed, so that a reader sees the old file or the new one. The folder is locked while its
process lives, and the next one that writes there removes those of processes that have died.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from everyformer.core.errors import CheckpointError, ConfigError, unwritable

try:
    import fcntl
except ImportError:  # on Windows nothing is locked, and so nothing swept
    fcntl = None  # type: ignore[assignment]

PREFIX = ".writing-"
_NEW, _FORMER = "new", "former"
"""parts of such a folder: what is made, and what stood in its place"""


@contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``final`` when the block ends well, and else goes away.

    Raises:
        UnsavedError: the disk is full or cannot be written; what stood there before still does.
    """
    with _translated(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        with workspace(final.parent) as work:
            written = work / _NEW / final.name
            written.mkdir()
            yield written
            finalise(work, final.parent)


@contextmanager
def file_written_whole(final: Path, *, parents: bool = False) -> Iterator[Path]:
    """A path to write at; its file, and any next to it, go to where ``final`` is when the block
    ends well. Into a device or a pipe the file is copied; ``parents`` makes the folders above it.

    Raises:
        UnsavedError: the disk is full or cannot be written; nothing new is left there.
    """
    with _translated(final):
        # what a link leads to is written, not the link
        final = Path(os.path.realpath(final))
        if final.exists() and not final.is_file() and not final.is_dir():
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder) / final.name
                with (Path(folder) / final.name).open("rb") as written, final.open("wb") as out:
                    shutil.copyfileobj(written, out)
            return
        if parents:
            final.parent.mkdir(parents=True, exist_ok=True)
        with workspace(final.parent) as work:
            yield work / _NEW / final.name
            finalise(work, final.parent)


def write_text(final: Path, text: str, *, parents: bool = False) -> None:
    """A whole file of UTF-8; raises as `file_written_whole`."""
    with file_written_whole(final, parents=parents) as path:
        path.write_text(text, encoding="utf-8", newline="")


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A locked hidden folder in ``parent``, which is gone when the block ends; `finalise` moves
    what was made in its part ``new``."""
    sweep(parent)
    work, handle = _claimed(parent)
    try:
        (work / _NEW).mkdir()
        yield work
    finally:
        _remove(work)
        if handle is not None:
            os.close(handle)


def finalise(work: Path, parent: Path) -> None:
    """Put on the disk what was made in the workspace ``work``, then rename it into ``parent``."""
    written = sorted((work / _NEW).iterdir())
    for path in written:
        for inner in path.iterdir() if path.is_dir() else ():
            sync(inner)
        sync(path)
    for path in written:
        target = parent / path.name
        if path.is_dir() and target.is_dir():
            (work / _FORMER).mkdir(exist_ok=True)
            target.rename(work / _FORMER / path.name)
        path.replace(target)
    sync(parent)


def sweep(parent: Path) -> None:
    """Remove what processes that have died left half-written in ``parent``."""
    if fcntl is None or not parent.is_dir():
        return
    with suppress(OSError):  # another one sweeps, or this one may not
        for path in sorted(parent.glob(f"{PREFIX}*")):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                if _lock(handle, wait=False):
                    _remove(path)
            finally:
                os.close(handle)


def sync(path: Path) -> None:
    """Ask the system to put a file, or the names in a folder, on the disk now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expanded(path: str | Path) -> Path:
    """A path that a person wrote, with ``~`` and ``~user`` as the folders that they stand for.

    Raises:
        ConfigError: it is empty, there is no such user, or it is an address.
    """
    if path == "":
        raise ConfigError("a file or folder was named by an empty text: name it, or leave it out")
    if is_address(path):
        raise ConfigError(
            f"{path} is an address, and a folder or file of this machine is needed here: mount the "
            "place as a folder, or name a local path and copy it yourself"
        )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path} begins with the home of a user that this machine does not know: write the "
            "path in full, or ./ before a name that begins with ~"
        ) from error


def is_address(path: str | Path) -> bool:
    """True if a path that a person wrote is SCHEME://..., in one word."""
    return isinstance(path, str) and re.fullmatch(r"[A-Za-z][\w.+-]*://\S*", path) is not None


def cache_folder() -> Path:
    """The user's folder for what can be made again: $EVERYFORMER_CACHE, or as the system has it."""
    if folder := os.environ.get("EVERYFORMER_CACHE"):
        return expanded(folder)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "everyformer"


def named_as(path: str | Path, ends: tuple[str, ...]) -> Path:
    """The path of a file whose form its name's end says.

    Raises:
        ConfigError: it ends in none of ``ends``.
    """
    path = expanded(path)
    if path.suffix.lower() not in ends:
        raise ConfigError(f"cannot write {path}: give a name that ends in {' or '.join(ends)}")
    return path


def visible_files(folder: Path) -> list[Path]:
    """The entries of a directory, hidden ones (locks, half-written files) apart."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def empty(folder: Path) -> None:
    """Remove the visible entries of a directory."""
    for path in visible_files(folder):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def require_no_file(folder: Path) -> None:
    """Refuse a folder to write into that is a file, or below one, before work is done for it.

    Raises:
        ConfigError: names the file.
    """
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        raise ConfigError(f"cannot write into {folder}: {there} is a file; choose another `out`")


def require_regular(path: Path) -> None:
    """Refuse a pipe or a device, whose reading may never end, where a file is expected.

    Raises:
        CheckpointError: it is there and no ordinary file.
    """
    with suppress(OSError):  # what cannot be looked at cannot be opened either, which says why
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path} is no ordinary file: give one, or a copy of its content")


@contextmanager
def _translated(final: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise unwritable(final, error) from error


def _claimed(parent: Path) -> tuple[Path, int | None]:
    """A new folder and the open handle that holds its lock."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        if fcntl is None:
            return work, None
        with suppress(FileNotFoundError):  # swept before it was locked
            handle = os.open(work, os.O_RDONLY)
            _lock(handle, wait=True)
            if work.is_dir():
                return work, handle
            os.close(handle)


def _lock(handle: int, wait: bool) -> bool:
    """True if the lock was got; where the file system has none it never is."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove(work: Path) -> None:
    """A workspace goes; a folder that was to be replaced and was not yet goes back."""
    with suppress(OSError):
        for former in (work / _FORMER).iterdir():
            if not (work.parent / former.name).exists():
                former.rename(work.parent / former.name)
    shutil.rmtree(work, ignore_errors=True)
