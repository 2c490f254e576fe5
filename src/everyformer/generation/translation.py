"""Translating many sentences, and how good the translations are by sacrebleu's BLEU and chrF."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from everyformer.core.errors import DataError
from everyformer.core.mask import Mask
from everyformer.data.text import decode
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.generation.beam import beam_search
from everyformer.generation.config import BeamConfig
from everyformer.models.base import Model
from everyformer.system.extras import extra_module


def translate_all(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[Tensor],
    search: BeamConfig,
    *,
    batch: int = 16,
    show: bool | None = None,
) -> list[str]:
    """The best translation of each source as text on one line, in the order of the sources.

    Args:
        sources: (S,) tokens each, with their end token.
        batch: sentences searched at a time; those of like length together.
        show: a progress bar on stderr; None where that is a terminal.

    Raises:
        DataError: a source is longer than the model takes.
    """
    require_room(model, sources)
    texts = [""] * len(sources)
    device = next(model.parameters()).device
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]), reverse=True)
    hidden = None if show is None else not show
    with tqdm(total=len(sources), unit="sentences", desc="translating", disable=hidden) as bar:
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            lengths = torch.tensor([len(sources[index]) for index in chosen], device=device)
            padded = pad_sequence([sources[index] for index in chosen], batch_first=True)
            mask = Mask.from_lengths(lengths, padded.shape[1])
            result = beam_search(model, padded.to(device), mask, search)
            for index, hypotheses in zip(chosen, result, strict=True):
                texts[index] = " ".join(decode(tokenizer, hypotheses[0].tokens).split())
            bar.update(len(chosen))
    return texts


def require_room(model: Model, sources: Sequence[Tensor]) -> None:
    """Raise unless the model takes all of ``sources``.

    Raises:
        DataError: a sentence is longer than the model's ``max_length``; the first one is named.
    """
    room = model.config.tokens
    for number, source in enumerate(sources, start=1):
        if len(source) > room:
            raise DataError(
                f"sentence {number} has {len(source)} tokens, but the model takes {room} at most; "
                "split it, or train with a greater --model.max-length"
            )


def quality(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF of a corpus, 0 to 100, each with sacrebleu's signature of how it was counted.

    Raises:
        MissingExtraError: sacrebleu is not installed.
    """
    metrics = sacrebleu_package().metrics
    result: dict[str, Any] = {}
    for name, metric in (("bleu", metrics.BLEU()), ("chrf", metrics.CHRF())):
        result[name] = float(metric.corpus_score(list(translations), [list(references)]).score)
        result[f"{name}_signature"] = str(metric.get_signature())
    return result


def sacrebleu_package() -> Any:
    """The package sacrebleu, which counts BLEU and chrF; raises where it is not installed."""
    return extra_module("sacrebleu", "text", "BLEU")
