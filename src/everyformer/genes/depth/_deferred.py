"""Tokens that have left the layers: what the states of deeper layers have still to take in.

A token that halts, or leaves early, costs deeper layers nothing until a later token reaches them.
So its stream is saved, and a layer takes in what it lacks when it runs: it has read as many tokens
as its state has ``num_tokens``, and lacks the last ones of those that the stack has seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.state import State, state
from everyformer.core.subset import gather_rows, order_of_real


@state
class Deferred(State):
    """The last tokens of every row, as many as the layer that has seen the fewest lacks."""

    num_tokens: Tensor
    """(B,) by the whole stack"""
    early: Tensor
    """(B,) how many of those might have left before the last layer"""
    stream: Tensor
    """(B, P, width) as they left"""
    positions: Tensor
    """(B, P) int64"""
    padding_mask: Tensor
    """(B, P) bool, which are real"""

    @classmethod
    def empty(cls, batch: int, width: int, **like: Any) -> Deferred:
        """No tokens; ``like``: device and dtype."""
        device = like.get("device")
        return cls(
            num_tokens=torch.zeros(batch, dtype=torch.long, device=device),
            early=torch.zeros(batch, dtype=torch.long, device=device),
            stream=torch.zeros(batch, 0, width, **like),
            positions=torch.zeros(batch, 0, dtype=torch.long, device=device),
            padding_mask=torch.zeros(batch, 0, dtype=torch.bool, device=device),
        )

    def lacked(self, num_tokens: Tensor) -> tuple[Tensor, Tensor, Mask | None] | None:
        """Tokens that a layer of ``num_tokens`` (B,) lacks: stream, positions and mask (no mask
        where all rows lack as many); None: nothing."""
        count, lacks = self.most(num_tokens), self.num_tokens - num_tokens
        if count == 0:
            return None
        stream, positions, padding_mask = self._last(count)
        rank = torch.arange(count, 0, -1, device=padding_mask.device)
        padding_mask = padding_mask & (rank <= lacks[:, None])
        return (
            stream,
            positions,
            None if bool(padding_mask.all()) else Mask(padding_mask=padding_mask),
        )

    def most(self, num_tokens: Tensor) -> int:
        """Number of tokens that a layer that has ``num_tokens`` (B,) lacks in some row, at most."""
        return int((self.num_tokens - num_tokens).max())

    def append(
        self, stream: Tensor, positions: Tensor, padding_mask: Tensor | None, early: bool = True
    ) -> Deferred:
        """With more tokens after these; no ``padding_mask``: all are real; ``early``: all might
        leave early, or none."""
        passed = self.passed(stream, padding_mask, early)
        if padding_mask is None:
            padding_mask = torch.ones(stream.shape[:2], dtype=torch.bool, device=stream.device)
        return Deferred(
            num_tokens=passed.num_tokens,
            early=passed.early,
            stream=torch.cat((self.stream, stream.to(self.stream.dtype)), 1),
            positions=torch.cat((self.positions, positions.expand(len(stream), -1)), 1),
            padding_mask=torch.cat((self.padding_mask, padding_mask), 1),
        )

    def passed(self, stream: Tensor, padding_mask: Tensor | None, early: bool = True) -> Deferred:
        """As `append`, where all layers have taken these tokens in: none waits."""
        count = stream.shape[1] if padding_mask is None else padding_mask.sum(1)
        num_tokens, left = self.num_tokens + count, self.early + count * early
        return Deferred(num_tokens, left, self.stream, self.positions, self.padding_mask)

    @property
    def none(self) -> bool:
        """True if no token waits."""
        return self.stream.shape[1] == 0

    def but_for(self, num_tokens: Tensor) -> Deferred:
        """Without those that all layers have taken in, if none has fewer than ``num_tokens``."""
        return Deferred(self.num_tokens, self.early, *self._last(self.most(num_tokens)))

    def _last(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The last ``count`` real tokens of every row, after padding where there are fewer."""
        order = order_of_real(self.padding_mask, last=True)[:, self.padding_mask.shape[1] - count :]
        return (
            gather_rows(self.stream, order),
            self.positions.gather(1, order),
            self.padding_mask.gather(1, order),
        )
