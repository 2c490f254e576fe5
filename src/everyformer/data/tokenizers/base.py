"""`Tokenizer`: the interface of all tokenizers, and how the text they read is cut."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from everyformer.core.errors import DataError
from everyformer.system.files import expanded, write_text
from everyformer.system.plain import to_json

SEPARATOR = "\0"
PIECE = 1 << 16
"""Characters encoded at a time; cut after a line's end, so that the cut changes no token inside."""


class Tokenizer(ABC):
    """A tokenizer: encodes and decodes text; equal when every text gives the same tokens."""

    kind: str
    name: str
    """The tokenizer as the option is written: ``bytes``, ``chars``, ``bpe:8000``, ``hub``."""
    vocabulary: int
    """Number of different tokens; ids are 0 up to this."""
    separator: int | None
    """The token that ends a document, or None where the training text had just one."""
    mask: int | None = None
    """The token that hides others, where the vocabulary has one."""
    characters: str | None = None
    """All that it was made for, where that is not every text."""
    opening: tuple[int, ...] = ()
    """Tokens that a single text begins with, and every prompt."""
    closing: tuple[int, ...] = ()
    """Tokens that a single text ends with."""

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """The tokens of ``text`` in the smallest unsigned dtype that holds the vocabulary."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; what is no valid UTF-8 becomes the replacement character."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything needed to make it again, as plain values."""

    def encode(self, text: str) -> list[int]:
        """The tokens of ``text``."""
        return self.encode_array(text).tolist()

    def encode_alone(self, text: str) -> np.ndarray:
        """The tokens of a single ``text``, such as one to classify."""
        tokens = self.encode_array(text)
        if not self.opening and not self.closing:
            return tokens
        return np.concatenate((self.opening, tokens, self.closing)).astype(self.dtype)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """The tokens of each source and of each target, in turn, without their ends."""
        return [self.encode_array(text) for pair in pairs for text in pair]

    @final
    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """The text that the tokens ``ids`` add to that of those ``before`` them."""
        context = self.context(before)
        return self.decode([*context, *ids])[len(self.decode(context)) :]

    @cached_property
    def spaced(self) -> bool:
        """True if some token is a space and what follows it."""
        # some leave out the space of a text's first token, so there is one before
        before = self.encode("a")
        texts = (self.decode_after(before, [token]) for token in range(self.vocabulary))
        return any(text.startswith(" ") and not text.isspace() for text in texts)

    def context(self, before: Iterable[int]) -> list[int]:
        """The tokens that the text of later ones depends on."""
        return []

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest unsigned dtype that holds every token."""
        if self.vocabulary <= 1 << 8:
            return np.uint8
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` into ``folder``, which exists."""
        text = to_json(self.to_dict(), ensure_ascii=False)
        write_text(expanded(folder) / "tokenizer.json", text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.kind, self.vocabulary))

    def __repr__(self) -> str:
        return f"{self.name} ({self.vocabulary} tokens)"


def check_size(known: int, size: int) -> None:
    """Refuse a file of ``known`` tokens for a model of ``size``."""
    if known > size:
        raise DataError(
            f"it has {known:,} tokens, the model only {size:,}: they do not belong together"
        )


def pieces(text: str) -> Iterator[str]:
    """``text`` cut after line ends into pieces of about `PIECE` characters."""
    start = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop
