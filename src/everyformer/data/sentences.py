"""Facts of the data that models with summaries need: tokens that end a sentence, and that hide."""

from __future__ import annotations

import dataclasses

from everyformer.data.dataset import Dataset
from everyformer.data.masking import MaskedTextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes.config import ModelConfig

MARKS = (".", "!", "?", "\n")
"""Last characters of sentences."""


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
        options = dataclasses.replace(options, ends=ends_of(dataset.tokenizer))
    if options.mask_token is None and isinstance(dataset, MaskedTextDataset) and options.cpc:
        options = dataclasses.replace(options, mask_token=dataset.mask_token)
    return dataclasses.replace(config, summaries=options)
