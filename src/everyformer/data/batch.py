"""`Batch`: what a model is given at one step, and what it is scored on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that is not scored (torch's own convention)."""


@dataclass(frozen=True)
class Batch:
    """B rows of inputs with their targets."""

    inputs: Tensor
    """(B, L) int64 tokens, or (B, C, H, W) uint8 pixels."""
    targets: Tensor
    """(B, L) int64 with -100 where nothing is scored, or (B,) int64 classes."""
    keep: Tensor | None = None
    """(B, L) bool, True = real token; None when all are."""

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        keep = None if self.keep is None else self.keep.to(device, non_blocking=True)
        return Batch(
            self.inputs.to(device, non_blocking=True),
            self.targets.to(device, non_blocking=True),
            keep,
        )

    def rows(self, start: int, stop: int) -> Batch:
        """Rows ``start`` up to ``stop``: one process's or one accumulation step's share."""
        keep = None if self.keep is None else self.keep[start:stop]
        return Batch(self.inputs[start:stop], self.targets[start:stop], keep)

    @property
    def tokens(self) -> int:
        """Positions computed, padding included; of pictures every channel value counts."""
        return self.inputs.numel()

    @property
    def scored(self) -> int:
        """How many targets count."""
        return int((self.targets != IGNORED).sum())
