"""Text with hidden tokens: what a masked language model is trained on and scored by.

Each token is chosen with probability r (``mask_rate``); of the chosen 80% become the mask token,
10% a random token, 10% stay as they are, and all chosen ones, these too, are the targets. The mask
token is the tokenizer's, or else one id more than it has, the last. Separators of documents are
never chosen. A row in which chance chose nothing hides the token that came nearest to being chosen.

Training draws again at every step, from (seed, step) alone; a validation window always hides the
same tokens.

Source: Devlin et al. 2018, arXiv 1810.04805, 3.1. There 15% of a row's tokens are chosen, rounded;
in this module each by itself, so that 15% is a mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from everyformer.core.errors import DataError
from everyformer.data.batch import IGNORED, WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.counting import counted_loss, sampled
from everyformer.data.dataset import Dataset
from everyformer.data.selection import Draws, spread
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from everyformer.genes.config import ModelConfig

MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask token and a random one."""
MARKS = (".", "!", "?", "\n")
"""Last characters of sentences."""
TRAINING_STREAM, VALIDATION_STREAM = 1, 2
"""Kept apart from each other and from the stream of `TextDataset` that places the windows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedTextDataset(Dataset):
    """Windows of a corpus with hidden tokens; targets are the hidden ones, -100 elsewhere."""

    text: TextDataset
    """Where the windows come from."""
    rate: float
    """Probability that a token is chosen."""
    seed: int
    """The data's seed, which the validation part's masks follow from."""

    @property
    def mask_token(self) -> int:
        """The id of hidden tokens."""
        token = None if self.tokenizer is None else self.tokenizer.mask
        return self.vocabulary - 1 if token is None else token

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        windows = self.text.train_batch(step, size, seed, portion)
        draws = Draws((seed, step, TRAINING_STREAM), size, portion)
        return replace(self.hide(windows.inputs.numpy(), draws), documents=windows.documents)

    @cached_property
    def counting(self) -> float | None:
        """Of single tokens: the one before may be hidden too."""
        train, held_out = sampled(self.text.train), sampled(self.text.validation)
        return counted_loss(train, held_out, self.vocabulary, grams=1)

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Windows side by side; the last reaches back to be full and hides only new tokens."""
        tokens = self.text.validation
        count = -(-len(tokens) // self.length)
        chosen = spread(count, limit)
        for first in range(0, len(chosen), size):
            rows = chosen[first : first + size].tolist()
            batch = Batch.joined([self._held_out(row) for row in rows])
            documents = self.text.documents_of(batch.inputs) if self.text.packed else None
            yield replace(batch, documents=documents)

    def _held_out(self, row: int) -> Batch:
        first = row * self.length
        start = min(first, len(self.text.validation) - self.length)
        window = self.text.validation[start : start + self.length].astype(np.int64)[None]
        new = np.arange(self.length)[None] >= first - start
        return self.hide(window, Draws((self.seed, row, VALIDATION_STREAM)), new)

    def hide(self, tokens: np.ndarray, random: Draws, able: np.ndarray | None = None) -> Batch:
        """Hide some of ``tokens`` (B, L); only those that are ``able`` (B, L); None: all."""
        free = tokens != self._separator
        if able is not None:
            free &= able
        draws = np.where(free, random.uniform(tokens.shape[1]), 1.0)
        least = draws.min(axis=1, keepdims=True)
        chosen = free & ((draws < self.rate) | (draws == least))
        fate = random.uniform(tokens.shape[1])
        hidden = np.where(fate < MASKED, self.mask_token, tokens)
        swapped = (fate >= MASKED) & (fate < MASKED + RANDOM)
        hidden = np.where(swapped, self._random_tokens(random.uniform(tokens.shape[1])), hidden)
        return Batch(
            torch.from_numpy(np.where(chosen, hidden, tokens)),
            torch.from_numpy(np.where(chosen, tokens, IGNORED)),
        )

    def _random_tokens(self, uniform: np.ndarray) -> np.ndarray:
        """Any token but the mask and the separator, all equally likely, by numbers in [0, 1)."""
        without = sorted({self.mask_token, self._separator} - {-1})
        drawn = (uniform * (self.vocabulary - len(without))).astype(np.int64)
        for token in without:
            drawn += drawn >= token
        return drawn

    @property
    def _separator(self) -> int:
        token = None if self.tokenizer is None else self.tokenizer.separator
        return -1 if token is None else token


def masked(text: Dataset, config: DataConfig) -> MaskedTextDataset:
    """The corpus ``text`` with hidden tokens."""
    if not isinstance(text, TextDataset) or text.tokenizer is None:
        raise DataError(f"{text.name} is no text whose tokens could be hidden (task mlm)")
    facts: dict[str, Any] = {"rate": config.mask_rate, "seed": config.seed}
    return MaskedTextDataset(
        name=text.name,
        task="mlm",
        kind="text",
        vocabulary=text.tokenizer.vocabulary + (text.tokenizer.mask is None),
        length=text.length,
        split=text.split,
        fingerprint=digest(text.fingerprint, "masked", False, facts),
        tokenizer=text.tokenizer,
        text=text,
        **facts,
    )


def ends_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens whose text ends as a sentence does, trailing spaces left out, and the separator."""

    def ends(token: int) -> bool:
        text = tokenizer.decode([token])
        return token == tokenizer.separator or text.rstrip(" \t\r").endswith(MARKS)

    return tuple(filter(ends, range(tokenizer.vocabulary)))


def with_sentences(config: ModelConfig, dataset: Dataset) -> ModelConfig:
    """``config`` with those facts of ``dataset`` that its summaries need and do not yet have."""
    options = config.summaries
    if options.per == "sentence" and not options.ends and dataset.tokenizer is not None:
        options = replace(options, ends=ends_of(dataset.tokenizer))
    if options.mask_token is None and isinstance(dataset, MaskedTextDataset) and options.cpc:
        options = replace(options, mask_token=dataset.mask_token)
    return replace(config, summaries=options)
