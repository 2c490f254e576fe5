"""Sampling from a language model: prompts in, tokens out, one at a time or all at once.

A member with an exact streaming state reads the prompt once and then one token a step. A member
without one reads the whole text again at each step, which gives the same tokens and costs more.
Scores are changed in this order: repetition penalty, minimum length, temperature, top-k, top-p.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor

from everyformer.core.errors import (
    ConfigError,
    DivergedError,
    ShapeError,
    UnsupportedError,
)
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating
from everyformer.core.seeds import mixed
from everyformer.core.state import StackState
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.generation.compiled import CompiledStep
from everyformer.generation.config import Sampling
from everyformer.generation.quantised import quantised
from everyformer.genes.depth.early_exits import reading_prompt
from everyformer.models.base import Model

ENDED = -1
"""in a batch, for the tokens that a row has not, since its text has ended"""

TIMED = 100
"""tokens whose seconds are known"""

Prompt = Tensor | Sequence[int] | Sequence[Sequence[int]]


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Next tokens (B,) from ``logits`` (B, vocabulary).

    Raises:
        DivergedError: the best of a row is no finite number.
    """
    check_scores(logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    cut, order = _ordered(logits, sampling)
    index = torch.multinomial(cut, 1, generator=generator)
    return order.gather(-1, index).squeeze(-1)


def check_scores(logits: Tensor) -> None:
    """Refuse ``logits`` (..., vocabulary) that say nothing: NaN, infinite, or minus that alone.

    Raises:
        DivergedError: a row is like that.
    """
    if not all(map(math.isfinite, logits.amax(-1).flatten().tolist())):
        raise DivergedError(
            "the model's scores of what comes next are not finite numbers, so nothing can be "
            "drawn: its training diverged; train it again with a lower `lr`"
        )


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (B, vocabulary) that `draw` draws from, in float32 or wider."""
    if sampling.temperature == 0:
        wide = torch.promote_types(logits.dtype, torch.float32)
        return torch.zeros_like(logits, dtype=wide).scatter(-1, logits.argmax(-1, True), 1.0)
    cut, order = _ordered(logits, sampling)
    return torch.zeros_like(cut).scatter(-1, order, cut)


def _ordered(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Probabilities (B, vocabulary), the largest first, and the tokens that they belong to."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # the largest becomes 0 first, so that no temperature makes it infinite
    scores = (scores - scores.amax(-1, keepdim=True)) / sampling.temperature
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    beyond = torch.zeros_like(ordered, dtype=torch.bool)
    if sampling.top_k is not None:
        beyond[:, sampling.top_k :] = True
    if sampling.top_p is not None:
        mass = ordered.masked_fill(beyond, -torch.inf).softmax(-1)
        # the token that crosses top_p stays: only tokens behind it go
        beyond |= mass.cumsum(-1) - mass >= sampling.top_p
    return ordered.masked_fill(beyond, -torch.inf).softmax(-1), order


def penalised(logits: Tensor, had: Tensor, penalty: float) -> Tensor:
    """Scores of tokens that the text ``had`` already (B, vocabulary) moved towards the unlikely.

    Source: Keskar et al. 2019, arXiv 1909.05858, 4.1, as Hugging Face has it: their formula divides
    negative scores too, which would raise them, so these are multiplied.
    """
    return torch.where(had, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


class TokenStream(Iterator[Tensor]):
    """New tokens (B,) as they are drawn, and the state that the next one will be drawn from."""

    def __init__(
        self,
        model: Model,
        texts: _Rows,
        tokens: int | None,
        state: StackState | None,
        compile: bool = False,
    ) -> None:
        self._step: CompiledStep | None = None
        self.compiled = compile
        self.times = deque[tuple[float, float]](maxlen=TIMED)
        """seconds of the newest tokens after the first: in the model, and to choose each"""
        self.model, self._state, self.rows = model, state, len(texts.ids)
        self._drawn = self._draw(texts, tokens, compile)

    @property
    def state(self) -> StackState | None:
        """State of the texts so far, less the newest tokens; None where all is recomputed."""
        return self._state if self._step is None else self._step.state

    def __next__(self) -> Tensor:
        # between two tokens the caller's model is as the caller left it
        model = self.model
        with evaluating(model) if model.training else nullcontext(), torch.inference_mode():
            return next(self._drawn)

    def _draw(self, texts: _Rows, tokens: int | None, compile: bool) -> Iterator[Tensor]:
        """The loop of `stream`."""
        ids, padding_mask, sampling = texts.ids, texts.padding_mask, texts.sampling
        rows, new = len(ids), ids
        generator = torch.Generator(device=ids.device)
        initial = self._state
        place = ids.shape[1] if padding_mask is None else int(padding_mask.sum(1).max())
        place += 0 if initial is None else int(initial.num_tokens.max())
        self._state = initial_state(self.model, rows) if initial is None else initial.reserve(64)
        whole = self._state is None
        if compile and whole:
            raise UnsupportedError(
                f"{self.model.config.member} recomputes the whole text at every token, since it "
                "has no exact state, so there is no step to compile: generate without compile"
            )
        alive = torch.arange(rows, device=ids.device)
        while len(alive) and (tokens is None or texts.count < tokens):
            part = None if padding_mask is None else Mask(padding_mask=padding_mask)
            started = time.perf_counter()
            prompt = texts.ids.shape[1] if whole or new is texts.ids else 0
            with reading_prompt(self.model, prompt) if prompt else nullcontext():
                if self._step is not None:
                    logits = self._step(new)
                else:
                    out = self.model(ids if whole else new, mask=part, state=self._state, last=1)
                    self._state, logits = out.state, out.logits
            if compile and self._step is None and self._state is not None:
                self._step = CompiledStep(self.model, self._state)
            computed = time.perf_counter()
            if sampling.temperature:
                # by the place in the text: a kept stream goes on as one that never stopped
                generator.manual_seed(mixed(sampling.seed, place + texts.count))
            token = draw(texts.ruled(logits[:, -1]), sampling, generator)
            if texts.count:
                self.times.append((computed - started, time.perf_counter() - computed))
            if len(alive) == rows:
                yield token
            else:
                yield torch.full((rows,), ENDED, device=ids.device).index_copy(0, alive, token)
            new = token[:, None]
            if whole:
                ids = torch.cat((ids, new), 1)
                if padding_mask is not None:
                    padding_mask = torch.cat(
                        (padding_mask, torch.ones_like(new, dtype=torch.bool)), 1
                    )
            else:
                padding_mask = None
            going = texts.add(token)
            if going is not None and len(going) < len(alive):
                alive, ids, new = alive[going], ids[going], new[going]
                padding_mask = None if padding_mask is None else padding_mask[going]
                if self._step is not None:
                    self._step.state = self._step.state.reorder(going)
                elif self._state is not None:
                    self._state = self._state.reorder(going)


def stream(
    model: Model,
    prompt: Prompt,
    *,
    tokens: int | None = None,
    mask: Mask | None = None,
    sampling: Sampling | None = None,
    tokenizer: Tokenizer | None = None,
    state: StackState | None = None,
    compile: bool = False,
    weights: Literal["int8"] | None = None,
) -> TokenStream:
    """Continue ``prompt`` and yield each new token (B,) as it is drawn.

    A row whose text has ended (by ``sampling.end_token``, which is yielded, or a stop string) is
    worked on no more and yields `ENDED`; when all have, the stream ends.

    Args:
        prompt: (B, L) or (L,) token ids, L >= 1, or one list of ids a row; lists of different
            length are padded on the left here, tensors are padded with a ``mask``.
        tokens: how many to make at most; None goes on for ever (where the member has no longest
            sequence).
        mask: ``padding_mask`` of the prompt, when it is padded, on any side.
        sampling: how tokens are drawn (default: temperature 1, seed 0).
        tokenizer: what reads the tokens, for stop strings.
        state: what came before the prompt (of as many rows), as an earlier stream left it. It
            holds no tokens: repetitions, the fewest tokens and stop strings count from here on.
        compile: whether steps after the prompt are one compiled graph
            (`everyformer.generation.compiled`); the first takes seconds, or reads what an earlier
            process compiled.
        weights: int8 writes by compiled steps with a copy of the model in 8 bits
            (`everyformer.generation.quantised`) as it is at this call; what is changed in the model
            later is of later calls. The copy reads the prompt too, so that a text that is gone on
            from a state is the one that never stopped. None: the model's own.

    Raises:
        UnsupportedError: the model has another task; ``compile`` where there is no C++ compiler,
            no exact state, or a step is no one graph; ``weights`` there, for several rows, and of
            what `quantised` refuses.
        ShapeError: a row without a token, a token beyond the vocabulary, or a text that outgrows
            the table over positions.
        ConfigError: stop strings without a tokenizer, an end token beyond the vocabulary.
    """
    if tokens is not None and tokens < 0:
        raise ConfigError(f"`tokens` must be 0 or more, not {tokens}")
    if not model.config.does.continues:
        raise UnsupportedError(
            f"a model of the task {model.config.task} continues no text: tokens are drawn from lm"
        )
    sampling = sampling or Sampling()
    ids, padding_mask = _rows_of(prompt, mask, next(model.parameters()).device)
    texts = _Rows(ids, padding_mask, model.config.vocabulary, sampling, tokenizer)
    if weights is not None and len(ids) > 1:
        raise UnsupportedError(
            f"weights in 8 bits write one text at a time, and would be slower for {len(ids)}: "
            "leave out weights, or give one prompt"
        )
    model = model if weights is None else quantised(model)
    return TokenStream(model, texts, tokens, state, compile or weights is not None)


def generate(
    model: Model,
    prompt: Prompt,
    *,
    tokens: int,
    mask: Mask | None = None,
    sampling: Sampling | None = None,
    tokenizer: Tokenizer | None = None,
    compile: bool = False,
    weights: Literal["int8"] | None = None,
) -> Tensor:
    """The new tokens (B, n) that `stream` yields, n at most ``tokens``; `ENDED` after an end.

    A model of `load` reads no datastore; the command line's `generate RUN` does.
    """
    new = stream(
        model, prompt, tokens=tokens, mask=mask, sampling=sampling, tokenizer=tokenizer,
        compile=compile, weights=weights,
    )  # fmt: skip
    drawn = list(new)
    return torch.stack(drawn, 1) if drawn else torch.empty(new.rows, 0, dtype=torch.long)


class _Rows:
    """The rows that are still worked on: what they hold, and which of them end."""

    def __init__(
        self,
        ids: Tensor,
        padding_mask: Tensor | None,
        vocabulary: int,
        sampling: Sampling,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.ids, self.padding_mask = ids, padding_mask
        """of the prompts"""
        strange = ids[(ids < 0) | (ids >= vocabulary)]
        if len(strange):
            raise ShapeError(
                f"the prompt has the token {int(strange[0])}, but the model knows {vocabulary:,}, "
                f"0 to {vocabulary - 1:,}: encode it with the tokenizer that the model learned with"
            )
        self.sampling, self.count = sampling, 0
        end = sampling.end_token
        if end is not None and end >= vocabulary:
            raise ConfigError(f"`end_token` is {end}, but the model has {vocabulary} tokens")
        self.had: Tensor | None = None
        if sampling.repetition_penalty != 1:
            real = torch.ones_like(ids, dtype=torch.bool) if padding_mask is None else padding_mask
            counts = torch.zeros(len(ids), vocabulary, dtype=torch.long, device=ids.device)
            self.had = counts.scatter_add(1, ids, real.long()) > 0
        self.tails: list[list[int]] = [[] for _ in range(len(ids))]
        self.tokenizer = tokenizer
        if sampling.stop and tokenizer is None:
            raise ConfigError("stop strings need the tokenizer that reads the tokens: give it")
        # a stop string ends in the newest token, and every other byte of it is a token at most
        self.reach = max((len(text.encode()) for text in sampling.stop), default=0)

    def ruled(self, logits: Tensor) -> Tensor:
        """``logits`` (B, vocabulary), repetitions penalised and an early end made impossible."""
        if self.had is not None:
            logits = penalised(logits, self.had, self.sampling.repetition_penalty)
        end = self.sampling.end_token
        if end is not None and self.count < self.sampling.min_tokens:
            logits = logits.index_fill(1, torch.tensor([end], device=logits.device), -torch.inf)
        return logits

    def add(self, token: Tensor) -> Tensor | None:
        """Take the newest tokens (B,) in; the indices of the rows that go on, None: all do."""
        self.count += 1
        if self.sampling.end_token is None and not self.reach and self.had is None:
            return None
        going = torch.ones_like(token, dtype=torch.bool)
        if self.sampling.end_token is not None:
            going = token != self.sampling.end_token
        if self.reach:
            assert self.tokenizer is not None
            for row, number in enumerate(token.tolist()):
                self.tails[row] = [*self.tails[row], number][-self.reach :]
                if self.count >= self.sampling.min_tokens:
                    text = self.tokenizer.decode(self.tails[row])
                    going[row] &= not any(stop in text for stop in self.sampling.stop)
        where = going.nonzero().squeeze(1)
        if self.had is not None:
            self.had = self.had.scatter(1, token[:, None], True)[where]
        if self.reach:
            self.tails = [self.tails[row] for row in where.tolist()]
        return where


def _rows_of(
    prompt: Prompt, mask: Mask | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token ids (B, L) of a prompt in any form, and which are real; None where all are."""
    if isinstance(prompt, Tensor) and prompt.is_floating_point() and prompt.numel():
        raise ShapeError(f"a prompt holds the ids of tokens, integers, not {prompt.dtype}")
    ragged = not isinstance(prompt, Tensor) and len(prompt) > 0 and isinstance(prompt[0], Sequence)
    if ragged and len({len(row) for row in prompt}) > 1:  # type: ignore[arg-type]
        if mask is not None:
            raise ShapeError("rows of different length are padded here: leave out the mask")
        rows: list[Sequence[int]] = list(prompt)  # type: ignore[arg-type]
        longest = max(len(row) for row in rows)
        if min(len(row) for row in rows) < 1:
            raise ShapeError("a prompt is empty: give at least one token to continue from")
        padded = [[0] * (longest - len(row)) + list(row) for row in rows]
        counts = torch.tensor([len(row) for row in rows], device=device)
        padding_mask = torch.arange(longest, 0, -1, device=device) <= counts[:, None]
        return torch.tensor(padded, device=device), padding_mask
    ids = torch.as_tensor(prompt, dtype=torch.long, device=device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.shape[1] < 1:
        raise ShapeError("the prompt is empty: give at least one token to continue from")
    if mask is None:
        return ids, None
    mask.require("generation", frozenset({"padding_mask"}))
    mask.check(len(ids), ids.shape[1], ids.shape[1])
    if mask.padding_mask is not None and not bool(mask.padding_mask.any(1).all()):
        raise ShapeError("a prompt is empty: give at least one token to continue from")
    return ids, mask.padding_mask


def initial_state(model: Model, batch: int) -> StackState | None:
    """An empty state, or None where a mixer of the model has no exact streaming form."""
    try:
        # room doubles when it is full: a token costs no copy of all that came before
        return model.init_state(batch).reserve(64)
    except UnsupportedError:
        return None
