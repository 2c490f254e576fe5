"""Byte-level BPE, learned from the training text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from everyformer.data.tokenizers.base import SEPARATOR, pieces
from everyformer.data.tokenizers.huggingface import PackageTokenizer, tokenizers_package
from everyformer.system.plain import from_json

TRAINING_TEXT = 64 << 20
"""Characters of text that a BPE vocabulary is learned from, at most."""


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


def _training_pieces(texts: Iterable[str]) -> Iterator[str]:
    left = TRAINING_TEXT
    for text in texts:
        for document in text[:left].split(SEPARATOR):
            yield from pieces(document)
        left -= len(text)
        if left <= 0:
            return
