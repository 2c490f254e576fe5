"""Linformer by its literal equations: slots of tokens one at a time, and queries that read them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everyformer.genes.mixers.linformer.slots import Projection


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
