"""Documents of a source as tokens, and the windows that a model reads them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.corpus import (
    StreamEncoder,
    checked,
    table_notes,
    table_texts,
    tables_among,
)
from everyformer.data.sources import Entry, Source
from everyformer.data.tables import TableReader, text_reader
from everyformer.data.tokenizers.base import Tokenizer


class Text(NamedTuple):
    """One document."""

    name: str
    tokens: np.ndarray
    """(n,)"""


class Window(NamedTuple):
    """Stretch of a text that a model reads at once, and its new part."""

    text: Text
    first: int
    new: int
    """tokens of the window that an earlier one had too"""
    end: int

    @property
    def inputs(self) -> np.ndarray:
        """The tokens; behind each another one follows in the text."""
        return self.text.tokens[self.first : self.end]


@dataclass(frozen=True)
class Texts:
    """The documents of a source in the order of its files: each file one, of tables each row."""

    source: Source
    tokenizer: Tokenizer
    config: DataConfig = field(default_factory=DataConfig)
    """which column of tables is read"""

    @property
    def entries(self) -> list[Entry]:
        """Files that hold something.

        Raises:
            DataError: there is none.
        """
        entries = [entry for entry in self.source.entries if entry.size > 0]
        if not entries:
            raise DataError(f"every text in '{self.source.given}' is empty; give some with content")
        return entries

    @cached_property
    def tables(self) -> set[str]:
        """Names of the files whose rows are documents."""
        return tables_among(self.entries, self.config)

    @cached_property
    def reader(self) -> TableReader | None:
        """Reader of those; None where there are none.

        Raises:
            ConfigError: none of the columns is called like a text, and none was chosen.
        """
        first = next((entry for entry in self.entries if entry.name in self.tables), None)
        return None if first is None else text_reader(self.source, self.config, first)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about tables, half a sentence each."""
        return table_notes(self.entries, self.tables, self.reader)

    @property
    def stamp(self) -> str:
        """Equal while no file was touched and the same columns are read."""
        stamp = self.source.stamp()
        return digest(stamp, self.config.table_options) if self.tables else stamp

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(entry.size for entry in self.entries)

    def __iter__(self) -> Iterator[Text]:
        for entry in self.entries:
            if entry.name in self.tables:
                assert self.reader is not None
                for number, text in table_texts(self.reader, entry):
                    if text:
                        yield self._text(f"{entry.name}:{number}", [text.encode()])
            else:
                chunks = checked(self.source, entry, self.tokenizer.kind != "bytes")
                yield self._text(entry.name, chunks)

    def _text(self, name: str, chunks: Iterable[bytes]) -> Text:
        encoder = StreamEncoder(self.tokenizer)
        parts = [encoder.feed(chunk) for chunk in chunks]
        return Text(name, np.concatenate((*parts, encoder.feed(b"", final=True))))


def windows(text: Text, context: int, stride: int) -> Iterator[Window]:
    """A text in windows of ``context`` tokens, each ``stride`` on; none of a text of one token.

    Every token but the last, which nothing follows, is new in one window.
    """
    count, seen, first = len(text.tokens) - 1, 0, 0
    while seen < count:
        end = min(first + context, count)
        yield Window(text, first, seen - first, end)
        seen, first = end, first + stride
