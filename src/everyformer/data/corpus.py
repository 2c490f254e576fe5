"""A corpus as one stream of bytes, checked and cut into training and validation on its way.

Several documents are joined in sorted order of their paths and each ends with U+0000; one document
alone has none. Of tables, each cell of the text column is a document: always of JSON lines and
Parquet, of CSV and TSV where the column is chosen (else they are plain text). No more than
a chunk is in memory.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.config import DataConfig
from everyformer.data.layout import find_layout
from everyformer.data.sources import CHUNK, UTF8, Entry, Source, text_lines
from everyformer.data.table import DELIMITED, JSON_LINES, PARQUET
from everyformer.data.tables import text_reader
from everyformer.data.tokenizers.base import PIECE, SEPARATOR, Tokenizer
from everyformer.data.tokenizers.names import tokenizer_parts
from everyformer.data.tokenizers.plain import ByteTokenizer

RAW = ".bin"
"""Ending of files that are bytes and no text."""
LONGEST_CHARACTER = 4
"""Bytes of one character in UTF-8, at most."""


class Documents(ABC):
    """Documents of a source in two parts, read again at every pass."""

    note: str
    """how they were separated, half a sentence"""
    documents: list[int]
    """of the training part and of the held-out one"""
    size: int
    """bytes of all"""
    notes = ""
    """remarks on what else was read, each with a semicolon before it"""

    @abstractmethod
    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        """``utf8``: every document must be UTF-8 (else .bin files and other encodings pass)."""

    @staticmethod
    @abstractmethod
    def cut(config: DataConfig) -> list[Any]:
        """The options that the two parts follow from."""

    @abstractmethod
    def parts(self) -> Iterator[tuple[bool, bytes]]:
        """Chunks in order, each with whether it is held out."""

    def training_text(self) -> Iterator[str]:
        """The training part as text, to learn a tokenizer from."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        return (decoder.decode(chunk) for held_out, chunk in self.parts() if not held_out)


class Corpus(Documents):
    """The documents of a source, and the byte at which the held-out part begins."""

    @staticmethod
    def cut(config: DataConfig) -> list[Any]:
        return [config.validation, config.part, config.columns]

    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        self.source, self.utf8 = source, utf8
        layout = find_layout(source.entries, config.part)
        self.note = layout.note
        held_out = layout.validation
        groups = [source.entries] if held_out is None else [layout.train, held_out]
        self._groups = [[entry for entry in group if source.size(entry) > 0] for group in groups]
        if not all(self._groups):
            raise DataError(f"every text in '{source.spec}' is empty; give files with content")
        self._tables = TextTables(source, config, [e for group in self._groups for e in group])
        self.notes = "".join(f"; {note}" for note in self._tables.notes)
        lengths = [self._lengths(group) for group in self._groups]
        self.documents = [*map(len, lengths)]
        self._joined = max(self.documents) > 1
        ends = np.cumsum(np.concatenate(lengths) + self._joined)
        self.size = int(ends[-1])
        self._cut = self._cut_at(ends, config.validation) if held_out is None else None

    def _lengths(self, group: Sequence[Entry]) -> np.ndarray:
        """Bytes of every document."""
        sizes: list[int] = []
        for entry in group:
            if entry.name in self._tables.names:
                sizes += [len(text.encode()) for _, text in self._tables.texts(entry)]
            elif _recoded(self.source, entry, self.utf8):
                sizes.append(sum(map(len, checked(self.source, entry, self.utf8))))
            else:
                sizes.append(self.source.size(entry))
        if not sizes:
            raise DataError(f"'{self.source.spec}' holds no document; give files with content")
        if not any(sizes):
            raise DataError(f"every text in '{self.source.spec}' is empty; give some with content")
        return np.array(sizes, dtype=np.int64)

    def _cut_at(self, ends: np.ndarray, held_out: float) -> int:
        """The held-out fraction's first byte: a document's where one begins near enough."""
        cut = int(self.size * (1 - held_out))
        if held_out == 1:
            self.note = "everything is held out"
            return 0
        nearest = int(ends[np.abs(ends[:-1] - cut).argmin()]) if len(ends) > 1 else 0
        if nearest > 0 and abs(nearest - cut) <= held_out / 2 * self.size:
            self.note = f"the last documents, about {held_out:.0%} of the bytes, are held out"
            return nearest
        self.note = f"the last {held_out:.0%} of the bytes are held out"
        return cut

    def parts(self) -> Iterator[tuple[bool, bytes]]:
        if self._cut is None:
            for part, group in enumerate(self._groups):
                for chunk in self._stream(group):
                    yield bool(part), chunk
            return
        seen, held_out = 0, False
        for chunk in self._stream(self._groups[0]):
            cut = max(self._cut - seen, 0)
            seen += len(chunk)
            if not held_out and cut < len(chunk):
                cut = _character_start(chunk, cut)
                held_out = cut < len(chunk)
                yield False, chunk[:cut]
                yield True, chunk[cut:]
            else:
                yield held_out, chunk

    def _stream(self, group: Sequence[Entry]) -> Iterator[bytes]:
        for entry in group:
            if entry.name in self._tables.names:
                cells = self._tables.texts(entry)
                yield from _in_chunks(text + SEPARATOR * self._joined for _, text in cells)
            else:
                yield from checked(self.source, entry, self.utf8)
                if self._joined:
                    yield SEPARATOR.encode()


class TextTables:
    """Tables among files of text, of which every row is a document.

    Args:
        entries: the files; CSV and TSV are tables where their text column is chosen.
    """

    def __init__(self, source: Source, config: DataConfig, entries: Sequence[Entry]) -> None:
        suffixes = JSON_LINES | PARQUET | (DELIMITED if config.text_column else set())
        tables = [entry for entry in entries if entry.suffix in suffixes]
        self.names = {entry.name for entry in tables}
        self.reader = text_reader(source, config, tables[0]) if tables else None
        self._plain = any(entry.suffix in DELIMITED - suffixes for entry in entries)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on what is read, half a sentence each."""
        plain = (
            "the table is read as plain text, delimiters and all (one column: --data.text-column)"
        )
        return (*(self.reader.notes if self.reader else ()), *([plain] if self._plain else []))

    def texts(self, entry: Entry) -> Iterator[tuple[int, str]]:
        """The number of every row of a table, and its cell in the text column."""
        assert self.reader is not None
        for row in self.reader.rows(entry):
            text = row.text(0)
            if SEPARATOR in text:
                raise DataError(
                    f"{row.at}: the text has the character U+0000, which marks the end "
                    "of a document here; remove it"
                )
            yield row.number, text


def checked(source: Source, entry: Entry, utf8: bool) -> Iterator[bytes]:
    """The chunks of a text file; in UTF-8 where the encoding is given, or ``utf8`` requests it and
    a mark tells the encoding.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    where = source.where(entry)
    raw = entry.suffix == RAW
    if raw and utf8:
        raise DataError(
            f"{where} is raw bytes by its name, which chars and bpe cannot read; take "
            "`data.tokenizer=bytes`, or rename it if it is text"
        )
    recoded = _recoded(source, entry, utf8)
    try:
        for chunk in _in_chunks(text_lines(source, entry, "")) if recoded else source.chunks(entry):
            if not raw and b"\0" in chunk:
                if not recoded and source.encoding_of(entry)[0] != UTF8:
                    raise DataError(
                        f"{where} is UTF-16 by its mark, but plain text keeps its bytes for the "
                        "tokenizer bytes; say `data.encoding=utf-16`, or take another "
                        "`data.tokenizer` such as chars"
                    )
                raise DataError(
                    f"{where} looks binary (it has NUL bytes), not like text. Give text alone (a "
                    "glob such as 'folder/**/*.txt' picks files; unpack archives first); to model "
                    "raw bytes, end the file's name in .bin and take `data.tokenizer=bytes`"
                )
            if utf8:
                decoder.decode(chunk)
            yield chunk
        if utf8:
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 text ({error.reason}), which chars and bpe need; convert it "
            "(iconv -f LATIN1 -t UTF-8), say what it is with `data.encoding`, or take "
            "`data.tokenizer=bytes`"
        ) from error


def _recoded(source: Source, entry: Entry, utf8: bool) -> bool:
    """Whether a file of text comes in other bytes than its own."""
    if entry.suffix == RAW:
        return False
    marked = utf8 and source.encoding_of(entry)[0] != UTF8
    return marked or source.encoding is not None


def _in_chunks(texts: Iterable[str]) -> Iterator[bytes]:
    """Texts in UTF-8, one after the other; a chunk each would be slow for short ones."""
    waiting = bytearray()
    for text in texts:
        waiting += text.encode()
        if len(waiting) >= CHUNK:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


class StreamEncoder:
    """Encodes text that comes in chunks of bytes; keeps back what a chunk cuts apart."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""

    def feed(self, chunk: bytes, final: bool = False) -> np.ndarray:
        """The tokens of the text so far, up to the last line's end; with ``final`` all."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return np.frombuffer(chunk, np.uint8)
        text = self._rest + self._decoder.decode(chunk, final)
        stop = len(text)
        line = max(text.rfind("\n"), text.rfind(SEPARATOR)) + 1
        if not final and stop - line < PIECE:
            stop = line
        self._rest = text[stop:]
        return self.tokenizer.encode_array(text[:stop])


def tokenizer_kind(config: DataConfig, tokenizer: Tokenizer | None) -> str:
    """Kind of a run's tokenizer, or of the one that the config names: bytes, chars, bpe, hub."""
    if tokenizer is not None:
        return tokenizer.kind
    kind, _ = tokenizer_parts(config.tokenizer)
    if config.validation == 1 and kind != "bytes":
        raise ConfigError(
            f"with `data.validation=1` no text is left to learn the tokenizer {config.tokenizer} "
            "from; give a smaller fraction"
        )
    return kind


def _character_start(chunk: bytes, start: int) -> int:
    """The first byte from ``start`` on where a UTF-8 character begins, or the chunk's end."""
    stop = min(start + LONGEST_CHARACTER - 1, len(chunk))
    while start < stop and chunk[start] & 0xC0 == 0x80:
        start += 1
    return start
