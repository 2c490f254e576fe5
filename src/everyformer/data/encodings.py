"""Encodings of text: UTF-8, UTF-16 by the mark in front, or the one that is said."""

import codecs
from encodings.aliases import aliases

from everyformer.core.errors import ConfigError, nearest

UTF8 = "utf-8"
MARKS = {UTF8: codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
"""Encoding -> the byte-order mark that files in it may begin with."""
LONGEST_MARK = max(map(len, MARKS.values()))
MARK = "\ufeff"
"""The mark as a character."""
WITHOUT_ORDER = {"utf-8-sig": UTF8, "utf-16": "utf-16-le"}
"""Codec that reads a mark by itself -> what it reads where there is none."""


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


def encoding_of(beginning: bytes, said: str | None) -> str:
    """The codec of a file that begins so: the one that is ``said``, whose order of bytes a mark may
    tell; else that of its mark, or UTF-8."""
    marked = next((each for each, mark in MARKS.items() if beginning.startswith(mark)), UTF8)
    if said is None:
        return marked
    codec = codecs.lookup(said).name
    usual = WITHOUT_ORDER.get(codec, codec)
    return marked if usual != codec and marked[:6] == codec[:6] else usual
