"""Losses of a language model by position in the segment, and by how much text came before."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.data.batch import IGNORED
from everyformer.training.reading import Read


class Curves:
    """Sums of losses by position; contexts are counted in octaves: 1, 2 to 3, 4 to 7 ... tokens."""

    def __init__(self, length: int) -> None:
        self._offsets = torch.zeros(2, length, dtype=torch.float64)
        self._contexts = torch.zeros(2, 64, dtype=torch.float64)

    def add(self, read: Read) -> None:
        """Take in one scored batch (B, L)."""
        targets = read.batch.targets.cpu()
        logits = read.out.logits.cpu()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses.view(targets.shape).double()
        scored = (targets != IGNORED).double()
        self._offsets += torch.stack((losses.sum(0), scored.sum(0)))
        context = read.before[:, None] + 1 + torch.arange(targets.shape[1])
        octave = context.double().log2().floor().long()
        self._contexts.index_add_(1, octave.flatten(), torch.stack((losses, scored)).flatten(1))

    def by_position(self) -> list[dict[str, Any]]:
        """Mean loss at each position of a segment, from 1 on, in at most 32 groups."""
        length = self._offsets.shape[1]
        size = math.ceil(length / 32)
        return [
            {"from": first + 1, "to": min(first + size, length)} | _mean(self._offsets, first, size)
            for first in range(0, length, size)
            if self._offsets[1, first : first + size].sum() > 0
        ]

    def by_context(self) -> list[dict[str, Any]]:
        """Mean loss of targets by how many tokens of their text were read before."""
        return [
            {"from": 2**n, "to": 2 ** (n + 1) - 1, **_mean(self._contexts, n, 1)}
            for n in range(64)
            if self._contexts[1, n] > 0
        ]


def _mean(sums: Tensor, first: int, size: int) -> dict[str, Any]:
    loss, count = sums[:, first : first + size].sum(1).tolist()
    return {"loss": loss / count, "targets": int(count)}
