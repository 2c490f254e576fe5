"""The tokenizer of a checkpoint of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.tokenizers.base import check_size
from everyformer.data.tokenizers.huggingface import PackageTokenizer
from everyformer.system.plain import from_json

CONTEXT = 16
"""Tokens before a piece of text that may change how its first characters are written."""


class HubTokenizer(PackageTokenizer):
    """The tokenizer of a checkpoint of others, a file of the package `tokenizers`, unchanged.

    Running text gets none of the marks that the file puts around a text ([CLS], <s> ...), a text by
    itself all of them, a prompt those in front. A mark that is written out in a text is read as the
    mark. Where long text is cut, a file that marks the beginning of a text does so anew.

    Args:
        model: the file's JSON.
        size: tokens that the model has; those beyond the file have no text.
        end: ends a document; None: documents follow each other unmarked.
        mask: the token that hides others, where there is one.

    Raises:
        DataError: the package cannot read it, or it has more tokens than the model.
        MissingExtraError: the package tokenizers is not installed.
    """

    kind = "hub"
    name = "hub"

    def __init__(self, model: str, size: int, end: int | None, mask: int | None) -> None:
        super().__init__(model)
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
        return {"kind": self.kind, "size": self.vocabulary, **marks, "model": model}
