"""The training text of a run as a store: chunks of it at equal distances, and their places."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from everyformer.core.errors import CheckpointError, DataError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.models.language import LanguageModel
from everyformer.stores.indexing import Indexing, key_width, origin_of, written
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer, is_unfinished

WINDOWS = 8
"""of a chunk, which overlap; the first of them has keys of short contexts"""


@dataclass(frozen=True)
class Chunks:
    """Some of a long row of tokens, to be stored."""

    tokens: np.ndarray
    size_limit: int
    """keys at most"""
    context: int
    stride: int

    @property
    def starts(self) -> np.ndarray:
        """First tokens of the chunks."""
        available = len(self.tokens) - 1
        if available <= self.size_limit:
            return np.zeros(1, np.int64)
        count = -(-self.size_limit // self.length)
        return np.linspace(0, available - self.length, count).astype(np.int64)

    @property
    def length(self) -> int:
        """Keys of each."""
        available = len(self.tokens) - 1
        if available <= self.size_limit:
            return available
        return min(self.context + (WINDOWS - 1) * self.stride, self.size_limit)

    @property
    def positions(self) -> np.ndarray:
        """(keys,) of each key's token in the row."""
        return (self.starts[:, None] + np.arange(self.length)).ravel()

    @property
    def size(self) -> int:
        """Tokens of all."""
        return len(self.starts) * self.length

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in self.starts.tolist():
            yield self.tokens[start : start + self.length + 1]


def stored(
    folder: Path,
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Chunks,
    how: Indexing,
    stamp: str,
    should_stop: Callable[[], bool],
) -> Store | None:
    """The store of ``texts`` in ``folder``, which is made where it is not there; None: stopped.

    One of another model, as of an earlier state of the run, is made again.
    """
    origin = origin_of(model, tokenizer, how.tap, how.context, how.stride)
    writer = None
    try:
        if is_unfinished(folder):
            writer = Writer.resume(folder, origin)
        elif folder.exists():
            return Store.open(folder, origin)
    except (CheckpointError, DataError):
        shutil.rmtree(folder)
    if writer is None:
        width = key_width(model, how.tap)
        writer = Writer.create(folder, origin, width, how.dtype, texts.size)
    return written(model, writer, texts, how, stamp, should_stop)
