"""Beam search: the likeliest targets, as far as following ``beam`` of them at a time finds them.

    score(y) = log P(y | source) / lp(|y|),   lp(n) = ((5 + n) / 6)^alpha   (or n^alpha)

At each step every hypothesis is extended by every token and the best 2 beam extensions are looked
at, in order: one that ends is kept as finished if it is among the first ``beam``, the first
``beam`` that do not end live on. A sentence is done when no living hypothesis can still beat its
worst kept one: since log P only falls, log P / lp(longest) bounds what it can reach. The start
token never follows, unless it is the end as well (Marian's is its padding, of no trained score).

Source: Wu et al. 2016 (GNMT), arXiv 1609.08144, eq. 14, as used by Vaswani et al. 2017. An end
counts among the first ``beam`` extensions only, as in fairseq and transformers (tensor2tensor: 2
beam); the bound is exact, as transformers' early_stopping="never". How good translations are is
counted by sacrebleu's BLEU and chrF.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from everyformer.core.errors import DataError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating
from everyformer.core.state import StackState
from everyformer.data.text import decode
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.generation.config import BeamConfig
from everyformer.generation.sampling import check_scores, initial_state
from everyformer.models.base import Model
from everyformer.models.seq2seq import EncoderDecoder
from sequence_laws.extras import extra_module
from sequence_laws.memory import check_memory


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A target of the search, with its score."""

    score: float
    """log-probability over the length penalty, in nats"""
    tokens: tuple[int, ...]
    """without the start and the end token"""
    ended: bool = True
    """False where the longest length cut it off"""


@torch.inference_mode()
def beam_search(
    model: Model, source: Tensor, mask: Mask | None = None, search: BeamConfig | None = None
) -> list[list[Hypothesis]]:
    """The best targets of each source, best first, at most ``search.beam`` of them.

    Args:
        source: (B, S) tokens. mask: ``padding_mask`` (B, S) of the real ones.

    Raises:
        UnsupportedError: the model is not an encoder-decoder.
    """
    if not isinstance(model, EncoderDecoder):
        raise UnsupportedError(f"beam search needs an encoder-decoder, not {type(model).__name__}")
    search = search or BeamConfig()
    with evaluating(model):
        return _Search(model, source, mask, search).run()


def search_together(
    model: Model, sources: Sequence[Tensor], search: BeamConfig
) -> list[list[Hypothesis]]:
    """`beam_search` of sources (S,) of any lengths, padded to the longest."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(source) for source in sources], device=device)
    padded = pad_sequence(list(sources), batch_first=True).to(device)
    return beam_search(model, padded, Mask.from_lengths(lengths, padded.shape[1]), search)


@dataclass
class _Sentence:
    """Search state of one source."""

    number: int
    longest: int
    finished: list[Hypothesis] = field(default_factory=list)

    def keep(self, hypothesis: Hypothesis, most: int) -> None:
        self.finished.append(hypothesis)
        self.finished.sort(reverse=True)
        del self.finished[most:]

    def done(self, best: float, count: int, search: BeamConfig) -> bool:
        """True if no living hypothesis of log-probability ``best`` can change anything any more."""
        if count >= self.longest or best == -math.inf:
            return True
        if len(self.finished) < search.beam:
            return False
        if search.early or search.beam == 1:
            return True
        reachable = max(best / search.normaliser(n) for n in (count + 1, self.longest))
        return self.finished[-1].score >= reachable


class _Search:
    """The sentences still searched; rows s beam .. (s + 1) beam - 1 are those of sentence s."""

    def __init__(
        self, model: EncoderDecoder, source: Tensor, mask: Mask | None, search: BeamConfig
    ) -> None:
        self.model, self.search = model, search
        batch, length = source.shape
        check_memory(
            batch * search.beam * model.config.vocabulary * 4,
            f"a beam of {search.beam:,} for each of {batch:,} sentences",
            "choose a smaller `beam`, or fewer at a time",
        )
        real = [length] * batch
        if mask is not None and mask.padding_mask is not None:
            real = mask.padding_mask.sum(1).tolist()
        room = model.config.tokens if model.config.max_length is not None else math.inf
        self.active = [
            _Sentence(n, int(min(count + search.extra, room))) for n, count in enumerate(real)
        ]
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(batch)]
        self.context = model.encode(source, mask).context
        rows = batch * search.beam
        self.state: StackState | None = initial_state(model, rows)
        self.start, self.end = model.config.start_token, model.config.end_token
        self.tokens = torch.full((rows, 1), self.start, device=source.device)
        # all beams begin alike: only the first may be extended
        self.alive = torch.full((batch, search.beam), -math.inf, device=source.device)
        self.alive[:, 0] = 0.0

    def run(self) -> list[list[Hypothesis]]:
        """Search until every sentence is done."""
        count = 0
        while self.active:
            self._extend(self._scores(), count)
            count += 1
            self._retire(count)
        return self.hypotheses

    def _scores(self) -> Tensor:
        """Log-probabilities (sentences, beam, vocabulary) of every extension."""
        if self.state is None:
            out = self.model.decode(self.tokens, self.context)
        else:
            out = self.model.decode(self.tokens[:, -1:], self.context, state=self.state)
            self.state = out.state
        check_scores(out.logits[:, -1])
        wide = torch.promote_types(out.logits.dtype, torch.float32)
        logp = out.logits[:, -1].to(wide).log_softmax(-1)
        if self.start != self.end:
            logp[:, self.start] = -math.inf
        return logp.view(len(self.active), self.search.beam, -1) + self.alive[..., None]

    def _extend(self, scores: Tensor, count: int) -> None:
        """Take the best extensions: finished ones aside, living ones into the rows."""
        beam, end = self.search.beam, self.end
        vocabulary = scores.shape[-1]
        best = scores.flatten(1).topk(min(2 * beam, beam * vocabulary), dim=1)
        rows: list[int] = []
        tokens: list[int] = []
        alive: list[list[float]] = []
        values, indices = best.values.tolist(), best.indices.tolist()
        for s, sentence in enumerate(self.active):
            going_on: list[float] = []
            for rank, (logp, index) in enumerate(zip(values[s], indices[s], strict=True)):
                origin, token = s * beam + index // vocabulary, index % vocabulary
                if token != end:
                    going_on.append(logp)
                    rows.append(origin)
                    tokens.append(token)
                elif rank < beam and logp > -math.inf:
                    score = logp / self.search.normaliser(count + 1)
                    text = tuple(self.tokens[origin, 1:].tolist())
                    sentence.keep(Hypothesis(score, text), beam)
                if len(going_on) == beam:
                    break
            # a vocabulary smaller than the beam leaves rows over
            spare = beam - len(going_on)
            rows += [s * beam] * spare
            tokens += [end] * spare
            alive.append(going_on + [-math.inf] * spare)
        device = self.tokens.device
        self._take(torch.tensor(rows, device=device))
        self.tokens = torch.cat((self.tokens, torch.tensor(tokens, device=device)[:, None]), 1)
        self.alive = torch.tensor(alive, device=device, dtype=scores.dtype)

    def _retire(self, count: int) -> None:
        """Drop the sentences that are done."""
        beam, left = self.search.beam, []
        best = self.alive.amax(1).tolist()
        for s, sentence in enumerate(self.active):
            if not sentence.done(best[s], count, self.search):
                left.append(s)
                continue
            if not sentence.finished:
                self._cut_off(s, sentence, count)
            self.hypotheses[sentence.number] = sentence.finished
        if len(left) == len(self.active):
            return
        self.active = [self.active[s] for s in left]
        chosen = torch.tensor(left, dtype=torch.long, device=self.tokens.device)
        self._take((chosen[:, None] * beam + torch.arange(beam, device=chosen.device)).flatten())
        self.alive = self.alive[chosen]
        self.context = tuple(layer.reorder(chosen) for layer in self.context)

    def _cut_off(self, s: int, sentence: _Sentence, count: int) -> None:
        """Nothing ended in time: the living hypotheses are the answer."""
        for b, logp in enumerate(self.alive[s].tolist()):
            if logp > -math.inf:
                text = tuple(self.tokens[s * self.search.beam + b, 1:].tolist())
                score = logp / self.search.normaliser(count)
                sentence.keep(Hypothesis(score, text, ended=False), self.search.beam)

    def _take(self, rows: Tensor) -> None:
        """Rows of what was decoded so far; the contexts belong to sentences and stay."""
        if rows.shape[0] == self.tokens.shape[0] and bool(
            (rows == torch.arange(rows.shape[0], device=rows.device)).all()
        ):
            return
        self.tokens = self.tokens[rows]
        if self.state is not None:
            self.state = self.state.reorder(rows)


def translate_all(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[Tensor],
    search: BeamConfig,
    *,
    batch: int = 16,
) -> list[str]:
    """The best translation of each source as text on one line, in the order of the sources.

    Args:
        sources: (S,) tokens each, with their end token.
        batch: sentences searched at a time; those of like length together.

    Raises:
        DataError: a source is longer than the model takes.
    """
    require_room(model, sources)
    texts = [""] * len(sources)
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]), reverse=True)
    # shown where stderr is a terminal
    with tqdm(total=len(sources), unit="sentences", desc="translating", disable=None) as bar:
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            result = search_together(model, [sources[index] for index in chosen], search)
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
                "split it, or train with a greater `model.max_length`"
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
