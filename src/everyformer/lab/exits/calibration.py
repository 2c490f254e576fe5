"""Texts that a model with early exits writes at a threshold, and how far they are from the best.

    text   L = D(Y_early, Y_full)                                Y: the likeliest continuation
    risk   L = max(0, R(Y_early, Z) - R(Y_full, Z))              Z: the reference
    D, R   tokens: the share of places with another token;  exact: 1 where any differs
           bleu, chrf: 1 - score / 100 of the text, by sacrebleu

Everything is written freely at the threshold that is tried: what a token reads are the tokens that
were written before it, so that nothing can be learned from one pass over a given text.

Source: Schuster et al. 2022, arXiv 2207.07061, section 4.2. The truncation of the risk bounds the
plain difference from above.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from everyformer.core.errors import DataError
from everyformer.core.tally import tallied
from everyformer.data.cache import digest
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.generation.beam import sacrebleu_package, search_together
from everyformer.generation.config import BeamConfig, Sampling
from everyformer.generation.sampling import ENDED, generate
from everyformer.genes.depth.early_exits import set_threshold
from everyformer.lab.exits.certificate import Consistency
from everyformer.models.base import Model

Metric = Literal["tokens", "exact", "bleu", "chrf"]
Text = tuple[int, ...]
T = TypeVar("T")


class Prompt(NamedTuple):
    """A prompt for which a text is written."""

    tokens: Text
    reference: Text | None = None
    """what followed it"""


def drawn(there: Sequence[T], count: int, seed: int) -> list[T]:
    """``count`` of ``there`` at most, each as likely as the others, in their order."""
    order = np.random.default_rng(seed).permutation(len(there))[:count]
    return [there[place] for place in sorted(order.tolist())]


def drawn_prompts(
    texts: Sequence[np.ndarray], context: int, tokens: int, count: int, seed: int
) -> list[Prompt]:
    """``count`` prompts of ``context`` tokens that do not overlap, and what follows each.

    Raises:
        DataError: there are none.
    """
    size = context + tokens
    starts = [(n, first) for n, text in enumerate(texts)
              for first in range(0, len(text) - size + 1, size)]  # fmt: skip
    if not starts:
        raise DataError(
            f"no text has {size:,} tokens, a prompt of {context:,} and {tokens:,} behind it: give "
            "longer texts, or a smaller `prompt_length` or `tokens`"
        )
    results = []
    for n, first in drawn(starts, count, seed):
        window = tuple(texts[n][first : first + size].tolist())
        results.append(Prompt(window[:context], window[context:]))
    return results


@dataclass
class Calibration:
    """A model's texts for prompts.

    Args:
        tokens: how many are written for each at most.
        batch: prompts at a time.
    """

    model: Model
    prompts: Sequence[Prompt]
    tokenizer: Tokenizer | None
    metric: Metric = "tokens"
    consistency: Consistency = "text"
    tokens: int = 32
    batch: int = 32
    depths: dict[float | None, float] = field(default_factory=dict, init=False)
    """threshold -> layers of a token on average, those of the prompt not counted; None: of the
    full model"""
    _full: list[Text] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.consistency == "risk" and any(p.reference is None for p in self.prompts):
            raise DataError(
                "`consistency=risk` compares with what follows a prompt, and single lines have "
                "nothing behind them: give running texts, or `consistency=text`"
            )
        if self.metric in ("bleu", "chrf"):
            sacrebleu_package()

    @property
    def fingerprint(self) -> str:
        """A checksum of prompts and references."""
        return digest([[prompt.tokens, prompt.reference] for prompt in self.prompts])

    def write(self, threshold: float | None) -> list[Text]:
        """The texts for all prompts at a threshold, or by the full model (None)."""
        set_threshold(self.model, threshold)
        with tallied() as tally:
            texts = self.write_all()
        depth = tally.means().get("mean_depth", float(len(self.model.stack.order)))
        self.depths[threshold] = depth
        return texts

    def write_all(self) -> list[Text]:
        """The texts by the model as it is."""
        batches = range(0, len(self.prompts), self.batch)
        parts = [[p.tokens for p in self.prompts[n : n + self.batch]] for n in batches]
        return [text for part in parts for text in self._write(part)]

    def losses(self, threshold: float) -> np.ndarray:
        """L of every prompt."""
        if self._full is None:
            self._full = self.write(None)
        early = self.write(threshold)
        if self.consistency == "text":
            return self._distances(early, self._full)
        references = [prompt.reference or () for prompt in self.prompts]
        beyond = self._distances(early, references) - self._distances(self._full, references)
        return np.maximum(0.0, beyond)

    def _write(self, prompts: list[Text]) -> list[Text]:
        if self.model.reads:
            sources = [torch.tensor(prompt) for prompt in prompts]
            result = search_together(self.model, sources, BeamConfig(beam=1, extra=self.tokens))
            return [best[0].tokens for best in result]
        rows: Any = [list(prompt) for prompt in prompts]
        made = generate(self.model, rows, tokens=self.tokens, sampling=Sampling(temperature=0))
        return [tuple(token for token in row if token != ENDED) for row in made.tolist()]

    def _distances(self, texts: Sequence[Text], expected: Sequence[Text]) -> np.ndarray:
        pairs = zip(texts, expected, strict=True)
        return np.array([self._distance(one, other) for one, other in pairs])

    def _distance(self, text: Text, expected: Text) -> float:
        if self.metric == "exact":
            return float(text != expected)
        if self.metric == "tokens":
            longest = max(len(text), len(expected), 1)
            same = sum(a == b for a, b in zip(text, expected, strict=False))
            return 1 - same / longest
        metrics = sacrebleu_package().metrics
        metric = metrics.BLEU(effective_order=True) if self.metric == "bleu" else metrics.CHRF()
        strings = [self._text(tokens) for tokens in (text, expected)]
        if strings[0] == strings[1]:
            return 0.0
        return 1 - min(100.0, float(metric.sentence_score(strings[0], [strings[1]]).score)) / 100

    def _text(self, tokens: Text) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.decode(list(tokens))
