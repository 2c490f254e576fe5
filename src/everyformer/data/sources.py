"""Files, folders, globs and zips as one thing: a sorted list of entries that can be read.

A file NAME.gz is its content, of the name NAME, unpacked as it is read. Nothing
from a zip is ever written to a path that the zip names. Hidden files and the litter of
desktop systems are passed over. Every failure to read is a `DataError` that names the file.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from encodings.aliases import aliases
from pathlib import Path
from typing import IO, Any

from everyformer.core.errors import ConfigError, DataError, nearest
from everyformer.data.cache import digest
from everyformer.system.files import expanded

CHUNK = 1 << 20
LARGEST_ZIP = 20 << 30
"""Unpacked bytes of a zip that are still read."""
SMALL_ZIP = 100 << 20
"""Below so many unpacked bytes any compression is believed."""
HIGHEST_RATIO = 200
"""Unpacked bytes for each byte of a zip that are still believed; text reaches about 10."""

ARRAYS = {".npy", ".npz"}
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
"""endings of files of arrays, and of pictures"""
PACKED = ".gz"
LITTER = {"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"}

UTF8 = "utf-8"
MARKS = {UTF8: codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
"""Encoding -> the byte-order mark that files in it may begin with."""
LONGEST_MARK = max(map(len, MARKS.values()))
MARK = "\ufeff"
"""The mark as a character."""
WITHOUT_ORDER = {"utf-8-sig": UTF8, "utf-16": "utf-16-le"}
"""Codec that reads a mark by itself -> what it reads where there is none."""


@dataclass(frozen=True)
class Entry:
    """One file of a source."""

    name: str
    """Its path inside the source, with forward slashes, without .gz."""
    size: int
    """Bytes, of a zip's entry unpacked, of a .gz as they lie there; see `Source.size`."""
    handle: Path | zipfile.ZipInfo
    """The place of its content."""
    parts: tuple[str, ...]
    """The path's parts that carry meaning: less a common folder and a split's folder."""
    packed: bool = False
    """True of a .gz."""

    @property
    def suffix(self) -> str:
        """The lower-case ending with its dot, or an empty string."""
        return Path(self.name).suffix.lower()


@dataclass(eq=False)
class Source:
    """The entries of one source, open for reading until the ``with`` block ends."""

    spec: str
    """The path, glob or name, as it was written."""
    entries: Sequence[Entry]
    archive: zipfile.ZipFile | None = None
    encoding: str | None = None
    """Of text, where it is given."""
    _sizes: dict[str, int] = field(default_factory=dict, init=False)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self.archive is not None:
            self.archive.close()

    @property
    def name(self) -> str:
        """Name of the data: the last part of the path that is no wildcard."""
        path = Path(self.spec)
        own = path.name if path.is_dir() else Path(unpacked_name(path.name)).stem
        for part in (own, path.parent.name):
            if plain := re.sub(r"[*?\[\]]+", "", part).strip("-_. "):
                return plain
        return path.resolve().name or "data"

    def stamp(self) -> str:
        """Hash of the paths, sizes and times of change: equal while nothing was touched."""
        files = [("", Path(str(self.archive.filename)))] if self.archive else []
        files += [(e.name, e.handle) for e in self.entries if isinstance(e.handle, Path)]
        rows: list[tuple[str, str, int, int]] = []
        for name, path in files:
            with reading(f"'{path}'"):
                status = path.stat()
            rows.append((name, str(path.absolute()), status.st_size, status.st_mtime_ns))
        return digest(rows, *filter(None, (self.encoding,)))

    def encoding_of(self, entry: Entry) -> tuple[str, bool]:
        """The encoding of a text, and whether it begins with a byte-order mark."""
        with reading(self.where(entry)), self.stream(entry) as stream:
            beginning = stream.read(LONGEST_MARK)
        found = encoding_of(beginning, self.encoding)
        return found, found in MARKS and beginning.startswith(MARKS[found])

    def where(self, entry: Entry) -> str:
        """The name of an entry in messages."""
        if isinstance(entry.handle, Path):
            return f"'{entry.handle}'"
        return f"'{entry.name}{PACKED * entry.packed}' in '{self.spec}'"

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """The content, about a mebibyte at a time."""
        where, seen = self.where(entry), 0
        with reading(where), self.stream(entry) as stream:
            while chunk := stream.read(CHUNK):
                seen += len(chunk)
                if entry.packed:
                    _refuse_bomb(where, seen, entry.size)
                yield chunk

    def read(self, entry: Entry) -> bytes:
        """The whole content."""
        return b"".join(self.chunks(entry))

    def size(self, entry: Entry) -> int:
        """Bytes of the content; those of a .gz are counted once, by unpacking it."""
        if not entry.packed:
            return entry.size
        if entry.name not in self._sizes:
            self._sizes[entry.name] = sum(map(len, self.chunks(entry)))
        return self._sizes[entry.name]

    def stream(self, entry: Entry) -> IO[bytes]:
        """The content as an open binary file; close it by ``with``."""
        file: Any = entry.handle
        if not isinstance(file, Path):
            assert self.archive is not None
            file = self.archive.open(file)
        elif not entry.packed:
            return file.open("rb")
        return gzip.open(file) if entry.packed else file  # type: ignore[return-value]


@contextmanager
def reading(where: str) -> Iterator[None]:
    """A block in which every failure to read becomes a `DataError` that names ``where``."""
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"{where} may not be read: permission denied. Change its permissions (chmod u+r) or "
            "run as a user who may read it"
        ) from error
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(
            f"{where} cannot be unpacked: {error}. It is cut short, damaged, encrypted or packed "
            "by an unknown method; pack or fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"{where} cannot be read: {error.strerror or error}") from error


def text_lines(source: Source, entry: Entry, newline: str | None = None) -> Iterator[str]:
    """The lines of a text, with their ends; a byte-order mark is passed over.

    ``newline`` is as in `open`: which line ends count, and whether they stay as they are.
    """
    where = source.where(entry)
    encoding, _ = source.encoding_of(entry)

    def opened(errors: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(source.stream(entry), encoding, errors, newline)

    try:
        with reading(where), opened("strict") as lines:
            if first := next(lines, "").removeprefix(MARK):
                yield first
            yield from lines
    except UnicodeDecodeError as error:
        # the decoder reads ahead of the lines that it gives
        with opened("replace") as lines:
            number = next((n for n, line in enumerate(lines, start=1) if "\ufffd" in line), 1)
        raise DataError(
            f"{where}, line {number} is not {encoding.upper()} text ({error.reason}); say what it "
            "is with `data.encoding` (windows-1252, latin-1 ...), or convert it (iconv -f LATIN1 "
            "-t UTF-8)"
        ) from error


def check_encoding(name: str) -> None:
    """Refuse what is no encoding of text."""
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:
        known = {name.replace("_", "-") for pair in aliases.items() for name in pair}
        raise ConfigError(f"unknown encoding '{name}'; {nearest(name.lower(), known)}") from error


def encoding_of(beginning: bytes, given: str | None) -> str:
    """The codec of a file that begins so: the ``given`` one, whose order of bytes a mark may tell;
    else that of its mark, or UTF-8."""
    marked = next((each for each, mark in MARKS.items() if beginning.startswith(mark)), UTF8)
    if given is None:
        return marked
    codec = codecs.lookup(given).name
    usual = WITHOUT_ORDER.get(codec, codec)
    return marked if usual != codec and marked[:6] == codec[:6] else usual


def open_source(spec: str, encoding: str | None = None) -> Source:
    """The file, folder, zip or glob that ``spec`` names, with the given encoding of its
    texts; close it by ``with``.

    Raises:
        DataError: missing, empty, unreadable, a loop of links, an unsafe zip.
        ConfigError: there is no such encoding.
    """
    if encoding is not None:
        check_encoding(encoding)
    return replace(_opened(spec), encoding=encoding)


def _opened(spec: str) -> Source:
    path = expanded(spec)
    with reading(f"'{spec}'"):
        exists = path.exists()
    if not exists and any(c in spec for c in "*?["):
        return _glob(spec)
    if not exists:
        hint = "" if not path.is_symlink() else " (the link leads nowhere)"
        raise DataError(f"there is no file or folder '{spec}'{hint}; check the path")
    if path.is_dir():
        return _folder(spec, path)
    if not path.is_file():
        raise DataError(f"'{spec}' is neither a file nor a folder; copy its content into a file")
    if path.suffix.lower() == ".zip":
        return _zip(spec, path)
    entry = _file_entry(path.name, path)
    if entry.size == 0:
        raise DataError(f"'{spec}' is empty; give a file with content")
    return Source(spec, [entry])


SPREADSHEETS = {".xlsx", ".xls", ".ods"}


def unpacked_name(name: str) -> str:
    """A file's name without .gz."""
    return name[: -len(PACKED)] if name.lower().endswith(PACKED) else name


def _file_entry(name: str, path: Path) -> Entry:
    if path.suffix.lower() in SPREADSHEETS:
        raise DataError(f"'{path}' is a spreadsheet: save it as CSV and give that file")
    with reading(f"'{path}'"):
        size = path.stat().st_size
    plain = unpacked_name(name)
    return Entry(plain, size, path, tuple(plain.split("/")), packed=plain != name)


def _once(spec: str, entries: list[Entry]) -> list[Entry]:
    """The entries, none of which is there both packed and unpacked: it would be read twice."""
    counts = Counter(entry.name for entry in entries)
    for entry in entries:
        if entry.packed and counts[entry.name] > 1:
            raise DataError(
                f"'{spec}' has '{entry.name}' packed ({PACKED}) and unpacked, and would read it "
                "twice; leave one of them"
            )
    return entries


def _folder(spec: str, root: Path) -> Source:
    entries = sorted(_walk(root), key=lambda e: e.parts)
    if not entries:
        raise DataError(f"the folder '{spec}' holds no files; give one that does")
    return Source(spec, _once(spec, entries))


def _walk(folder: Path, parts: tuple[str, ...] = (), above: tuple = ()) -> Iterator[Entry]:
    """The files below ``folder``, links followed; ``above`` are the folders that it lies in."""
    with reading(f"'{folder}'"):
        status = folder.stat()
        names = sorted(os.listdir(folder))
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise DataError(
            f"'{folder}' is a link to a folder that contains it, so reading would never end; "
            "remove the link or give a glob that avoids it"
        )
    for name in names:
        path = folder / name
        if _is_litter(name):
            continue
        if path.is_dir():
            yield from _walk(path, (*parts, name), (*above, identity))
        elif path.is_file():
            yield _file_entry("/".join((*parts, name)), path)


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name in LITTER


def _glob(spec: str) -> Source:
    matches = glob.glob(str(expanded(spec)), recursive=True)
    paths = sorted(Path(match) for match in matches if Path(match).is_file())
    if not paths:
        raise DataError(f"no file matches '{spec}'; quote it, and use ** to reach into folders")
    if len(paths) == 1:
        return _opened(str(paths[0]))
    common = Path(os.path.commonpath([path.parent for path in paths]))
    entries = [_file_entry(path.relative_to(common).as_posix(), path) for path in paths]
    return Source(spec, _once(spec, entries))


def _zip(spec: str, path: Path) -> Source:
    with ExitStack() as opened:
        with reading(f"'{spec}'"):
            archive = opened.enter_context(zipfile.ZipFile(path))
        entries: list[Entry] = []
        for info in archive.infolist():
            inside = info.filename.replace("\\", "/")
            parts = tuple(part for part in inside.split("/") if part not in ("", "."))
            if ".." in parts or re.match(r"/|[A-Za-z]:/", inside):
                raise DataError(
                    f"the zip '{spec}' names '{info.filename}', a path outside itself; such a zip "
                    "is not read. Pack the files again by relative paths"
                )
            if not parts or any(_is_litter(part) for part in parts):
                continue
            if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                *folders, name = parts
                parts = (*folders, unpacked_name(name))
                packed = parts[-1] != name
                entries.append(Entry("/".join(parts), info.file_size, info, parts, packed))
        unpacked = sum(entry.size for entry in entries)
        _refuse_bomb(f"the zip '{spec}'", unpacked, path.stat().st_size)
        if not entries:
            raise DataError(f"the zip '{spec}' holds no files; give one that does")
        entries.sort(key=lambda e: e.parts)
        source = Source(spec, _once(spec, entries), archive=archive)
        opened.pop_all()
        return source


def _refuse_bomb(what: str, unpacked: int, packed: int) -> None:
    """Python reads no more of an entry than it declares, so the declared sizes are the real ones"""
    if unpacked > LARGEST_ZIP or (unpacked > SMALL_ZIP and unpacked > HIGHEST_RATIO * packed):
        raise DataError(
            f"{what} would grow from {packed:,} to {unpacked:,} bytes; more than {HIGHEST_RATIO} "
            f"times, or {LARGEST_ZIP >> 30} GiB, is not unpacked. If it is sound, unpack it "
            "yourself and give what is in it"
        )
