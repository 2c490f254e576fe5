"""Sampling from a language model: prompts in, tokens out, one at a time or all at once.

A member with an exact streaming state reads the prompt once and then one token a step. A member
without one reads the whole text again at each step, which gives the same tokens and costs more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.state import StackState
from everyformer.models.base import Model


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits."""

    temperature: float = 1.0
    """divides the logits; 0 takes the likeliest token"""
    top_k: int | None = None
    """draw among this many likeliest tokens only"""
    top_p: float | None = None
    """draw among the fewest tokens that hold this much probability"""
    seed: int = 0
    """of the draws"""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ConfigError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], not {self.top_p}")


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Next tokens (B,) from ``logits`` (B, vocabulary)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None:
        least = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None:
        ordered, order = scores.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        # the token that crosses top_p stays: only tokens behind it go
        beyond = mass.cumsum(-1) - mass >= sampling.top_p
        scores = scores.masked_fill(beyond.gather(1, order.argsort(-1)), -torch.inf)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(1)


@torch.inference_mode()
def stream(
    model: Model,
    prompt: Tensor | Sequence[int],
    *,
    tokens: int | None = None,
    mask: Mask | None = None,
    sampling: Sampling | None = None,
) -> Iterator[Tensor]:
    """Continue ``prompt`` and yield each new token (B,) as it is drawn.

    Args:
        prompt: (B, L) or (L,) token ids, L >= 1; rows of different length are padded on the left.
        tokens: how many to make; None goes on for ever (where the member has no longest sequence).
        mask: ``keep`` of the prompt, when it is padded.
        sampling: how tokens are drawn (default: temperature 1, seed 0).

    Raises:
        ShapeError: an empty prompt, or a text that outgrows the member's table over positions.
    """
    sampling = sampling or Sampling()
    ids = torch.as_tensor(prompt, dtype=torch.long, device=next(model.parameters()).device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.shape[1] < 1:
        raise ShapeError("the prompt is empty: give at least one token to continue from")
    generator = torch.Generator(device=ids.device).manual_seed(sampling.seed)
    training, made = model.training, 0
    model.eval()
    try:
        state = initial_state(model, ids.shape[0])
        new, keep = ids, None if mask is None else mask.keep
        while tokens is None or made < tokens:
            part = None if keep is None else Mask(keep=keep)
            if state is None:
                out = model(ids, mask=part)
            else:
                out = model(new, mask=part, state=state)
                state = out.state
            token = draw(out.logits[:, -1], sampling, generator)
            yield token
            new = token[:, None]
            if state is None:
                ids = torch.cat((ids, new), 1)
                if keep is not None:
                    keep = torch.cat((keep, torch.ones_like(new, dtype=torch.bool)), 1)
            else:
                keep = None
            made += 1
    finally:
        model.train(training)


def generate(
    model: Model,
    prompt: Tensor | Sequence[int],
    *,
    tokens: int,
    mask: Mask | None = None,
    sampling: Sampling | None = None,
) -> Tensor:
    """The ``tokens`` new tokens (B, tokens) that `stream` yields."""
    made = list(stream(model, prompt, tokens=tokens, mask=mask, sampling=sampling))
    return torch.stack(made, 1) if made else torch.empty(1, 0, dtype=torch.long)


def initial_state(model: Model, batch: int) -> StackState | None:
    """An empty state, or None where a mixer of the model has no exact streaming form."""
    try:
        return model.init_state(batch)
    except UnsupportedError:
        return None
