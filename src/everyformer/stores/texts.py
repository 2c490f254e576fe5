"""Documents of a source as tokens, and the windows that a model reads them in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.corpus import StreamEncoder, TextTables, checked
from everyformer.data.sources import Entry, Source
from everyformer.data.tokenizers.base import Tokenizer


class Window(NamedTuple):
    """Chunk of a text that a model reads at once, and its new part."""

    text: np.ndarray
    """(n,) tokens"""
    first: int
    new: int
    """tokens of the window that an earlier one had too"""
    end: int

    @property
    def inputs(self) -> np.ndarray:
        """The tokens; behind each another one follows in the text."""
        return self.text[self.first : self.end]


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
        filled = [entry for entry in self.source.entries if self.source.size(entry) > 0]
        if not filled:
            raise DataError(f"every text in '{self.source.spec}' is empty; give some with content")
        return filled

    @cached_property
    def tables(self) -> TextTables:
        """The files whose rows are documents.

        Raises:
            ConfigError: none of the columns is called like a text, and none was chosen.
        """
        return TextTables(self.source, self.config, self.entries)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about tables, half a sentence each."""
        return self.tables.notes

    @property
    def stamp(self) -> str:
        """Equal while no file was touched and the same columns are read."""
        stamp = self.source.stamp()
        return digest(stamp, self.config.columns) if self.tables.names else stamp

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(map(self.source.size, self.entries))

    def __iter__(self) -> Iterator[np.ndarray]:
        """The tokens (n,) of each."""
        for entry in self.entries:
            if entry.name in self.tables.names:
                for _, text in self.tables.texts(entry):
                    if text:
                        yield self._tokens([text.encode()])
            else:
                yield self._tokens(checked(self.source, entry, self.tokenizer.kind != "bytes"))

    def _tokens(self, chunks: Iterable[bytes]) -> np.ndarray:
        encoder = StreamEncoder(self.tokenizer)
        parts = [encoder.feed(chunk) for chunk in chunks]
        return np.concatenate((*parts, encoder.feed(b"", final=True)))


def windows(text: np.ndarray, context: int, stride: int) -> Iterator[Window]:
    """A text in windows of ``context`` tokens, each ``stride`` on; none of a text of one token.

    Every token but the last, which nothing follows, is new in one window.
    """
    count, seen, first = len(text) - 1, 0, 0
    while seen < count:
        end = min(first + context, count)
        yield Window(text, first, seen - first, end)
        seen, first = end, first + stride
