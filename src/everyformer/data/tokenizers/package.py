"""Tokenizers of the package `tokenizers`: byte-level BPE, and those of checkpoints of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.tokenizers.base import SEPARATOR, Tokenizer, check_size, pieces
from everyformer.system.plain import from_json
from sequence_laws.extras import extra_module

TRAINING_TEXT = 64 << 20
"""Characters of text that a BPE vocabulary is learned from, at most."""
CONTEXT = 16
"""Tokens before a piece of text that may change how its first characters are written."""


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


class BPETokenizer(PackageTokenizer):
    """Byte-level BPE: pieces learned from the training text; every text can be encoded."""

    kind = "bpe"

    def __init__(self, size: int, model: str) -> None:
        super().__init__(model)
        self.name, self.size = f"bpe:{size}", size
        self.vocabulary = self._inner.get_vocab_size()
        self._end = np.array(self._inner.encode(SEPARATOR).ids, dtype=self.dtype)
        self.separator = int(self._end[0])

    @classmethod
    def fit(cls, texts: Iterable[str], size: int) -> BPETokenizer:
        """Learn up to ``size`` tokens from the first 64 million characters of ``texts``.

        Text too small for so many repeated pairs gives a smaller vocabulary.
        """
        package = tokenizers_package()
        inner = package.Tokenizer(package.models.BPE())
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        )
        inner.train_from_iterator(_training_pieces(texts), trainer)
        return cls(size, inner.to_str())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size, "model": from_json(self.model)}


class HubTokenizer(PackageTokenizer):
    """The tokenizer of a checkpoint of others, a file of the package `tokenizers`, unchanged.

    Running text gets none of the marks that the file puts around a text ([CLS], <s> ...), a text by
    itself all of them, a prompt those in front. A mark that is written out in a text is read as the
    mark. Where long text is cut, a file that marks the beginning of a text does so again.

    Args:
        model: the file's JSON.
        size: tokens that the model has; those beyond the file have no text.
        end: ends a document; None: documents follow each other unmarked.
        mask: the token that hides others, where there is one.
        names: spellings of its special tokens by their use to transformers (``pad_token`` ...),
            which nothing here reads: an export hands them on.

    Raises:
        DataError: the package cannot read it, or it has more tokens than the model.
        MissingExtraError: the package tokenizers is not installed.
    """

    kind = "hub"
    name = "hub"

    def __init__(
        self,
        model: str,
        size: int,
        end: int | None,
        mask: int | None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(model)
        self.names = dict(names)
        self.vocabulary, self.separator, self.mask = size, end, mask
        check_size(self.known, size)
        for mark in (end, mask):
            if mark is not None and not 0 <= mark < size:
                raise DataError(f"its mark {mark} is none of the model's {size:,} tokens")
        # a file may keep how its makers cut and filled their batches
        self._inner.no_truncation()
        self._inner.no_padding()
        self._end = np.array([] if end is None else [end], dtype=self.dtype)
        marked = self._inner.encode("a")
        inside = [index for index, mark in enumerate(marked.special_tokens_mask) if not mark]
        first, last = (inside[0], inside[-1]) if inside else (len(marked.ids),) * 2
        self.opening, self.closing = tuple(marked.ids[:first]), tuple(marked.ids[last + 1 :])

    @property
    def known(self) -> int:
        """Tokens that the file itself has, counted up to the highest."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    def token(self, number: int) -> str | None:
        """The spelling of a token in the file, special ones too; None where it has none."""
        return self._inner.id_to_token(number)

    def number(self, text: str | None) -> int | None:
        """The token that the file writes so; None where it has none."""
        return None if text is None else self._inner.token_to_id(text)

    def context(self, before: Iterable[int]) -> list[int]:
        """Some files leave a space out where a text begins."""
        return list(before)[-CONTEXT:]

    def to_dict(self) -> dict[str, Any]:
        model = from_json(self.model)
        marks = {"end": self.separator, "mask": self.mask}
        named = {"size": self.vocabulary, **marks, "names": self.names}
        return {"kind": self.kind, **named, "model": model}


def _training_pieces(texts: Iterable[str]) -> Iterator[str]:
    left = TRAINING_TEXT
    for text in texts:
        for document in text[:left].split(SEPARATOR):
            yield from pieces(document)
        left -= len(text)
        if left <= 0:
            return


def _understood(model: str) -> Any:
    """The tokenizer that a file of the package is."""
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
