"""Documents of a source as tokens, and the windows that a model reads them in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.corpus import StreamEncoder, checked
from everyformer.data.sources import Entry, Source
from everyformer.data.table import DELIMITED, JSON_LINES, PARQUET
from everyformer.data.tokenizers.base import Tokenizer


class Text(NamedTuple):
    """One document."""

    name: str
    tokens: np.ndarray
    """(n,)"""


class Window(NamedTuple):
    """What a model reads at once of a text, and from where on it is new."""

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
    """The documents of a source, each file one, in the order of their names."""

    source: Source
    tokenizer: Tokenizer

    @property
    def entries(self) -> list[Entry]:
        """Files that hold something.

        Raises:
            DataError: there is none, or a table among them.
        """
        found = [entry for entry in self.source.entries if entry.size > 0]
        if not found:
            raise DataError(f"every text in '{self.source.given}' is empty; give some with content")
        tables = [e for e in found if e.suffix in DELIMITED | JSON_LINES | PARQUET]
        if tables:
            raise DataError(
                f"{self.source.where(tables[0])} is a table: a store is made of texts, a file "
                "each; write its cells into files, or give a folder of texts"
            )
        return found

    @property
    def size(self) -> int:
        """Bytes of all."""
        return sum(entry.size for entry in self.entries)

    def __iter__(self) -> Iterator[Text]:
        for entry in self.entries:
            encoder = StreamEncoder(self.tokenizer)
            chunks = checked(self.source, entry, self.tokenizer.kind != "bytes")
            parts = [encoder.feed(chunk) for chunk in chunks]
            parts.append(encoder.feed(b"", final=True))
            yield Text(entry.name, np.concatenate(parts))


def windows(text: Text, context: int, stride: int) -> Iterator[Window]:
    """A text in windows of ``context`` tokens, each ``stride`` on; none of a text of one token.

    Every token but the last, which nothing follows, is new in one window.
    """
    count, seen, first = len(text.tokens) - 1, 0, 0
    while seen < count:
        end = min(first + context, count)
        yield Window(text, first, seen - first, end)
        seen, first = end, first + stride
