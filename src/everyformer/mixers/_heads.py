"""Mixers that continue a text, and those with heads: the parts that their members share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.state import State
from everyformer.engines.projections import HeadProjections
from everyformer.mixers.base import RowMixer


class StreamingMixer(RowMixer):
    """Base of row mixers with a state; a member says what it is before the first token."""

    out: nn.Linear

    @property
    def continues(self) -> bool:
        """Whether there is an exact state."""
        return self.causal

    def empty_state(self, batch: int, **like: Any) -> State:
        """`init_state` where there is one; ``like``: device and dtype."""
        raise NotImplementedError

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        if not self.continues:
            super().init_state(batch_size)
        own = self.out.weight
        return self.empty_state(batch_size, device=device or own.device, dtype=dtype or own.dtype)

    def check_seen(self, seen: Tensor) -> None:
        """Refuse ``seen`` (B,) tokens beyond this mixer's table; a compiled graph cannot ask."""
        if not torch.compiler.is_compiling():
            self.check_length(int(seen.max()))


class HeadMixer(StreamingMixer):
    """Base of row mixers with heads (B, H, L, D)."""

    heads: int
    head_dim: int
    options: Any

    def add_projections(self, bias: tuple[str, ...]) -> None:
        """Projections of x to queries, keys and values, and of all heads to the output."""
        size = self.head_dim
        self.project = HeadProjections(
            (self.width,) * 3, (self.heads, self.heads), (size, size), bias
        )
        self.out = nn.Linear(self.heads * size, self.width, bias="output" in bias)
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def merge(self, y: Tensor) -> Tensor:
        """The output (B, L, width) of what the heads give, (B, H, L, D)."""
        return self.out(y.transpose(1, 2).flatten(2))

    @property
    def dropout(self) -> float:
        """Of weights, as this mode has it."""
        return float(self.options.attention_dropout) if self.training else 0.0
