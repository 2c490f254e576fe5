"""Texts with their next tokens, or with those that a mask hides."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import DataError
from everyformer.core.wording import shortened
from everyformer.data.text import encode_prompt
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.tasks.prediction.predictor import Predictor
from everyformer.tasks.prediction.records import candidates
from everyformer.tasks.prediction.words import Words

MARKS = re.compile(r"\[MASK\]|_{3,}")
"""the marks of one hidden token in a text"""
TOKENS = 5
"""tokens that are given by default"""


class NextPredictor(Predictor):
    """Predicts the token that follows a text."""

    top = TOKENS
    kept = "the last {} of each"

    def answer(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        # padded in front, so that the last position is every row's own
        logits = self.logits(rows, front=True, last=1)[:, -1]
        for row, p in zip(rows, logits.softmax(-1), strict=True):
            yield {"tokens": self.words.likeliest(row.tolist(), p, top)}

    def columns(self, top: int | None = None, target: bool = False) -> list[str]:
        return candidates("token", min(top or self.top, self.config.vocabulary), target)

    def truth(self, target: Tensor, read: np.ndarray) -> str | None:
        last = int(target[-1])
        return None if last < 0 else self.words.after(read.tolist(), last)

    def shortened(self, row: np.ndarray) -> np.ndarray:
        return row[-self.length :]

    def encode(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        if not text:
            return np.empty(0, dtype=np.int64)
        return encode_prompt(tokenizer, text)[0].numpy()


class MaskPredictor(Predictor):
    """Predicts the token behind each mask of a text."""

    top = TOKENS
    kept = "what is about a mask"

    def __init__(self, *given: Any, **known: Any) -> None:
        super().__init__(*given, **known)
        own = None if self.tokenizer is None else self.tokenizer.mask
        self.mask = self.config.vocabulary - 1 if own is None else own
        """the id of hidden tokens"""
        self.words = Words(self.tokenizer, self.mask)

    def answer(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        logits = self.logits(rows)
        for row, z in zip(rows, logits, strict=True):
            places = np.flatnonzero(row == self.mask)
            ids, masks = row.tolist(), []
            z[:, self.mask] = -torch.inf  # nothing hides a mask
            for place in places.tolist():
                masks.append(self.words.likeliest(ids[:place], z[place].softmax(-1), top))
                ids[place] = masks[-1][0].id
            yield {"masks": (*masks,), "filled": self.words.text(ids)}

    def columns(self, top: int | None = None, target: bool = False) -> list[str]:
        return ["filled", "masks"]

    def truth(self, target: Tensor, read: np.ndarray) -> None:
        return None

    def asks(self, row: np.ndarray) -> bool:
        return self.mask in row

    def shortened(self, row: np.ndarray) -> np.ndarray:
        first = int(np.argmax(row == self.mask)) - self.length // 2
        return row[max(0, min(first, len(row) - self.length)) :][: self.length]

    def encode(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        """The tokens of a text in which marks stand for hidden ones."""
        if not text:
            return np.empty(0, dtype=np.int64)
        self.count_unknown(MARKS.sub("", text), tokenizer)
        parts = MARKS.split(text)
        if len(parts) == 1:
            raise DataError(
                f"'{shortened(text, 60)}' has no hidden token: write [MASK] or ___ for each that "
                "is to be filled in"
            )
        result = list(tokenizer.opening)
        # where tokens begin with their space, the one before a mark is the hidden token's own
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            result += tokenizer.encode(
                part.removesuffix(" ") if tokenizer.spaced and not last else part
            )
            result += [] if last else [self.mask]
        return np.array([*result, *tokenizer.closing], dtype=np.int64)
