"""Sampling from a language model: prompts in, tokens out, one at a time or all at once.

A member with an exact streaming state reads the prompt once and then one token a step. A member
without one reads the whole text again at each step, which gives the same tokens and costs more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.state import StackState
from everyformer.generation.config import Sampling
from everyformer.models.base import Model


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Next tokens (B,) from ``logits`` (B, vocabulary)."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores = logits.float()
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
    kept = ordered.masked_fill(beyond, -torch.inf).softmax(-1)
    place = torch.multinomial(kept, 1, generator=generator)
    return order.gather(-1, place).squeeze(-1)


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
    if tokens is not None and tokens < 0:
        raise ConfigError(f"'tokens' must be 0 or more, not {tokens}")
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
    ids = torch.as_tensor(prompt, dtype=torch.long)
    made = list(stream(model, ids, tokens=tokens, mask=mask, sampling=sampling))
    rows = 1 if ids.dim() == 1 else ids.shape[0]
    return torch.stack(made, 1) if made else ids.new_empty(rows, 0)


def initial_state(model: Model, batch: int) -> StackState | None:
    """An empty state, or None where a mixer of the model has no exact streaming form."""
    try:
        return model.init_state(batch)
    except UnsupportedError:
        return None
