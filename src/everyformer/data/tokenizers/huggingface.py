"""Tokenizers of the package `tokenizers`: text to tokens and back by one of its files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.tokenizers.base import SEPARATOR, Tokenizer, pieces
from everyformer.system.extras import extra_module


class PackageTokenizer(Tokenizer):
    """A tokenizer that the package computes.

    Args:
        model: the file's JSON.

    Raises:
        DataError: the package cannot read it.
        MissingExtraError: the package is not installed.
    """

    _end: np.ndarray
    """The token that ends a document, or none, in the dtype of all tokens."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._inner = _understood(model)

    def encode_array(self, text: str) -> np.ndarray:
        arrays = [self._end[:0]]
        for number, part in enumerate(self._encode_each(text.split(SEPARATOR))):
            if number:
                arrays.append(self._end)
            arrays.append(part)
        return np.concatenate(arrays)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        return self._encode_each([text for pair in pairs for text in pair])

    def decode(self, ids: Iterable[int]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def _encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of each text."""
        parts = [list(pieces(text)) for text in texts]
        # in one call, which is several times as fast for short texts
        joined = [piece for part in parts for piece in part]
        encoded = iter(self._inner.encode_batch_fast(joined, add_special_tokens=False))
        dtype = self._end.dtype
        return [
            np.concatenate([self._end[:0], *(np.array(next(encoded).ids, dtype) for _ in part)])
            for part in parts
        ]


def _understood(model: str) -> Any:
    """The tokenizer that a file of the package is.

    Raises:
        DataError: it is none, or reads no text.
    """
    package = tokenizers_package()
    try:
        inner = package.Tokenizer.from_str(model)
        inner.encode("a")
    # the package raises nothing more special
    except Exception as error:
        raise DataError(
            f"it is no tokenizer of the package tokenizers that reads text: {error}"
        ) from error
    return inner


def tokenizers_package() -> Any:
    """The package that computes BPE and the tokenizers of checkpoints.

    Raises:
        MissingExtraError: it is not installed.
    """
    return extra_module("tokenizers", "text", "a bpe tokenizer or a checkpoint's")
