"""Encodings of text: known by a mark in front, or guessed from the bytes of all lines."""

import codecs
from collections.abc import Iterable
from encodings.aliases import aliases

from everyformer.core.errors import ConfigError, DataError, nearest

UTF8 = "utf-8"
MARKS = {UTF8: codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
"""Encoding -> the byte-order mark that files in it may begin with."""
LONGEST_MARK = max(map(len, MARKS.values()))
MARK = "\ufeff"
"""The mark as a character."""
WITHOUT_ORDER = {"utf-8-sig": UTF8, "utf-16": "utf-16-le"}
"""Codec that reads a mark by itself -> what it reads where there is none."""
UNDEFINED = frozenset(b"\x81\x8d\x8f\x90\x9d")
"""Bytes that stand for nothing in windows-1252."""


def check_encoding(name: str) -> None:
    """Refuse what is no encoding of text.

    Raises:
        ConfigError: with the nearest names.
    """
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:
        known = {name.replace("_", "-") for pair in aliases.items() for name in pair}
        raise ConfigError(f"unknown encoding '{name}'; {nearest(name.lower(), known)}") from error


def said_encoding(name: str, beginning: bytes) -> str:
    """The codec of a file that is said to be in ``name``, whose mark may tell the order of bytes"""
    codec = codecs.lookup(name).name
    if codec not in WITHOUT_ORDER:
        return codec
    marked = (each for each, mark in MARKS.items() if beginning.startswith(mark))
    return next((each for each in marked if each[:6] == codec[:6]), WITHOUT_ORDER[codec])


def guessed_encoding(lines: Iterable[bytes], where: str) -> str:
    """The encoding of a file: by its mark, UTF-8 where all of it is that, else windows-1252, or
    latin-1 where bytes stand for nothing in that.

    Raises:
        DataError: lines in two encodings, or bytes that no text of either has.
    """
    wide = foreign = 0
    strange = False
    for number, line in enumerate(lines, start=1):
        if number == 1:
            for name, mark in MARKS.items():
                if name != UTF8 and line.startswith(mark):
                    return name
        if b"\0" in line and (number == 1 or foreign):
            raise DataError(
                f"{where}, line {number} has NUL bytes, as files that are no text have, and UTF-16 "
                "without its mark; give text, or say --data.encoding utf-16-le"
            )
        if line.isascii():
            continue
        try:
            line.decode()
        except UnicodeDecodeError:
            foreign = foreign or number
            strange = strange or not UNDEFINED.isdisjoint(line)
        else:
            wide = wide or number
        if foreign and wide:
            raise DataError(
                f"{where} is in two encodings, line {wide} in UTF-8 and line {foreign} not; write "
                "all of it in one, or say with --data.encoding in which it is to be read"
            )
    return ("latin-1" if strange else "windows-1252") if foreign else UTF8
