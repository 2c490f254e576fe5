"""Tokenizers without a package: UTF-8 bytes, and the characters of the training text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from everyformer.data.tokenizers.base import Tokenizer


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 256 tokens, nothing to learn, nothing unknown."""

    kind = "bytes"
    name = "bytes"
    vocabulary = 256
    separator = 0

    def encode_array(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


class CharTokenizer(Tokenizer):
    """The characters of the training text in code order from 1; 0 is all others."""

    kind = "chars"
    name = "chars"
    unknown = 0
    characters: str

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self.vocabulary = len(characters) + 1
        points = np.array([ord(c) for c in characters], dtype=np.int64)
        self._ids = np.zeros(0x110000, dtype=self.dtype)
        self._ids[points] = np.arange(1, len(points) + 1)
        self.separator = int(self._ids[0]) or None
        self._texts = ["\ufffd", *characters]

    @classmethod
    def fit(cls, texts: Iterable[str]) -> CharTokenizer:
        """The vocabulary of all characters that occur in ``texts``."""
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        return cls("".join(sorted(seen)))

    def encode_array(self, text: str) -> np.ndarray:
        return self._ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._texts[int(i)] for i in ids)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}
