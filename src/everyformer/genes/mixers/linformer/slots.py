"""Tokens of a length into slots: by a matrix, by means, by maxima, by a filter that moves on.

Letters: B batch, G groups of heads, S tokens, C channels, P one or two projections (keys, values).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.engines.ranges import full_precision, widened

Projection = Literal["linear", "mean", "max", "conv"]
LEARNED = ("linear", "conv")


class Slots(NamedTuple):
    """Slots that queries read."""

    keys: Tensor
    """(B, H, K, D)"""
    values: Tensor
    """(B, H, K, D)"""
    filled: Tensor | None
    """(B, K) bool, which are made of a real token; None: all"""


def compress(
    x: Tensor, weight: Tensor | None, kind: Projection, window: int, keep: Tensor | None = None
) -> Tensor:
    """Slots of tokens, all at once and in float32 at least: (P, B, G, slots, C) in x's dtype.

    Args:
        x: (B, G, S, C), zero where nothing is real. weight: (P, G, k, n >= S) or, of a
            convolution, (P, G, window); None of means and maxima (P = 1).
        window: tokens of a slot, where the kind has windows; their number is ceil(S / window).
        keep: (B, S) bool, a prefix of True in every row.
    """
    with full_precision(x):
        wide = widened(x)
        if kind == "linear":
            assert weight is not None
            return (_columns(weight, x.shape[2]).to(wide.dtype)[:, None] @ wide).to(x.dtype)
        if kind == "max" and keep is not None:
            wide = wide.masked_fill(~keep[:, None, :, None], -math.inf)
        padding = -x.shape[2] % window
        filler = -math.inf if kind == "max" else 0.0
        cut = F.pad(wide, (0, 0, 0, padding), value=filler).unflatten(2, (-1, window))
        if kind == "conv":
            assert weight is not None
            return (weight.to(wide.dtype)[:, None, :, None, None] @ cut).squeeze(-2).to(x.dtype)
        if kind == "max":
            top = cut.amax(3)
            return top.masked_fill(top == -math.inf, 0)[None].to(x.dtype)
        real = keep if keep is not None else x.new_ones(1, x.shape[2], dtype=torch.bool)
        count = F.pad(real, (0, padding)).unflatten(1, (-1, window)).sum(2).clamp(min=1)
        return (cut.sum(3) / count[:, None, :, None])[None].to(x.dtype)


def _columns(weight: Tensor, count: int) -> Tensor:
    """The first ``count`` columns of the last dimension."""
    if torch.compiler.is_exporting():
        # looked up, since a slice would tie the program to lengths other than the table's
        return weight[..., torch.arange(count, device=weight.device)]
    return weight[..., :count]


def compress_reference(x: Tensor, weight: Tensor | None, kind: Projection, window: int) -> Tensor:
    """The slots (slots, C) of tokens ``x`` (S, C) of one row, one slot at a time.

    ``weight`` is E (k, n >= S), the filter (window,) of a convolution, or None.
    """
    if kind == "linear":
        assert weight is not None
        return torch.stack([(row[: len(x), None] * x).sum(0) for row in weight])
    slots = []
    for first in range(0, len(x), window):
        tokens = x[first : first + window]
        if kind == "conv":
            assert weight is not None
            slots.append((weight[: len(tokens), None] * tokens).sum(0))
        else:
            slots.append(tokens.mean(0) if kind == "mean" else tokens.amax(0))
    return torch.stack(slots)


def linformer_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition: q (..., L, D) read slots k, v (..., K, D) by softmax."""
    weights = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    return weights / weights.sum(-1, keepdim=True) @ v
