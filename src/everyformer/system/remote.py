"""Folders at places that fsspec reaches (s3://, gs://, az:// ...), each with a local one for it.

What is written goes into the local folder first, as all files do (`everyformer.system.files`), and
is sent from there; what is read is fetched into it, unless it is there as it was fetched before.

fsspec is imported in this module alone, and only where a path names such a place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from everyformer.core.errors import (
    CheckpointError,
    ConfigError,
    EveryformerError,
    MissingExtraError,
    UnsavedError,
    nearest,
)
from everyformer.system.extras import extra_module
from everyformer.system.files import cache_folder, file_written_whole, is_remote, write_text
from everyformer.system.plain import from_json, to_json

CLOUD = ("s3fs", "gcsfs", "adlfs")
"""packages that the extra cloud brings"""
PROBE = ".writing-probe"
"""a file that is written and removed, to see whether that can be"""


class Remote:
    """A folder at such a place; `folder` is the local one that stands for it.

    Args:
        url: SCHEME://PATH.

    Raises:
        MissingExtraError: the package of the scheme is not installed.
        ConfigError: there is no such scheme, or the address is none of its.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.folder = local_folder(self.url)
        self._files, self._root = _opened(self.url)
        self._memo = self.folder.parent / "fetched.json"

    def lock(self) -> FileLock:
        """The lock of a process while it changes the local folder, as one that trains does."""
        return FileLock(self.folder.parent / "changing.lock")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other process of this machine fetches into the local folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder.parent / "fetching.lock"):
            yield

    def stamps(self) -> dict[str, str]:
        """The files that are there by their names below the folder, each with what tells whether it
        was changed since; hidden ones apart.

        Raises:
            CheckpointError: the place cannot be read, or has names that lead out of the folder.
        """
        with self._reading():
            self._files.invalidate_cache()
            found: dict[str, Any] = self._files.find(self._root, detail=True)
        result = {}
        for path, about in found.items():
            name = path.removeprefix(self._root).lstrip("/")
            if ".." in name.split("/"):
                raise CheckpointError(f"{self.url} has a file '{name}', which leads out of it")
            if name and not any(part.startswith(".") for part in name.split("/")):
                result[name] = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()
        return result

    def read(self, name: str) -> bytes:
        """The content of a small file; raises as `stamps`."""
        with self._reading():
            content: bytes = self._files.cat_file(self._path(name))
            return content

    def fetch(self, names: Iterable[str], stamps: dict[str, str]) -> None:
        """Bring the local files of these names up to date; raises as `stamps`.

        Args:
            stamps: what `stamps` gave.
        """
        memo = from_json(self._memo.read_text()) if self._memo.exists() else {}
        for name in names:
            local = self.folder / name
            if name in memo and memo[name] == [stamps[name], *_touched(local)]:
                continue
            with file_written_whole(local, parents=True) as path, self._reading():
                self._files.get_file(self._path(name), str(path))
            memo[name] = [stamps[name], *_touched(local)]
            write_text(self._memo, to_json(memo))

    def send(self, names: Iterable[str]) -> None:
        """Send the local files of these names, one after the other.

        Raises:
            UnsavedError: the place refuses.
        """
        with self._writing():
            for name in names:
                self._files.put_file(str(self.folder / name), self._path(name))

    def remove(self, name: str = "") -> None:
        """Remove the file or folder of this name from the place, or all; raises as `send`."""
        with self._writing():
            self._files.invalidate_cache()
            if self._files.exists(self._path(name)):
                self._files.rm(self._path(name), recursive=True)

    def check_writable(self) -> None:
        """Write a file and remove it.

        Raises:
            ConfigError: that is refused.
        """
        try:
            with self._writing():
                self._files.pipe_file(self._path(PROBE), b"everyformer")
                self._files.rm_file(self._path(PROBE))
        except UnsavedError as error:
            raise ConfigError(
                f"cannot write into {self.url}: {_reason(error.__cause__)}; check the name and "
                "that you may write there, or choose another --out"
            ) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except EveryformerError:
            raise
        except Exception as error:  # every client has classes of its own
            raise CheckpointError(
                f"cannot read {self.url}: {_reason(error)}; check the name, and that you may read "
                "there"
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # likewise
            raise UnsavedError(
                f"cannot write into {self.url}: {_reason(error)}; what is whole there still is, "
                f"and what was to be sent lies in {self.folder}"
            ) from error


def local_folder(url: str) -> Path:
    """The local folder that stands for a place, whether it is there or not."""
    url = url.rstrip("/")
    name = re.sub(r"[^\w.-]", "_", url.rpartition("/")[2]) or "files"
    return cache_folder() / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of the files below a folder by name; hidden ones apart."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): _touched(path)
        for name, path in sorted(found.items())
        if not any(part.startswith(".") for part in name.parts)
    }


def _touched(path: Path) -> tuple[int, int]:
    if not path.is_file():
        return -1, -1
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _opened(url: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    assert is_remote(url)
    scheme = url.partition("://")[0]
    core = extra_module("fsspec.core", "cloud", f"{scheme}://", package="fsspec")
    known = extra_module("fsspec.registry", "cloud", f"{scheme}://").known_implementations
    # of its file system alone; object stores have no folders to make
    options = {"auto_mkdir": True} if scheme in ("file", "local") else {}
    try:
        files, root = core.url_to_fs(url, **options)
    except ImportError as error:
        package = known.get(scheme, {}).get("class", "").partition(".")[0]
        if package in CLOUD:
            raise MissingExtraError(package, "cloud", f"{scheme}://") from error
        raise ConfigError(f"{scheme}:// cannot be used here: {_reason(error)}") from error
    except Exception as error:  # every client has classes of its own
        if scheme not in known:
            raise ConfigError(
                f"nothing is known of places that begin with {scheme}://; "
                f"{nearest(scheme, sorted(known))}"
            ) from error
        raise ConfigError(f"{url} is no address that can be used: {_reason(error)}") from error
    return files, str(root).rstrip("/")


def _reason(error: BaseException | None) -> str:
    """The words of an error in one line."""
    said = getattr(error, "strerror", None) or str(error)
    return next(iter(str(said).splitlines()), "") or type(error).__name__
