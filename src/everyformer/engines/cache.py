"""Keys and values that softmax attention has read: the growing state, and the context's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.core.state import State, state
from everyformer.engines.rows import gather_rows


@state
class KeyValueState(State):
    """Keys and values of the tokens seen. Padding keeps its slot, marked by ``keep``."""

    seen: Tensor
    keys: Tensor
    """(B, H_kv, S, D), already turned where RoPE is in use"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    keep: Tensor
    """(B, S) bool, which slots hold a real token"""
    positions: Tensor
    """(B, S) int64, absolute"""

    @classmethod
    def empty(
        cls, rows: tuple[int, int], key_dim: int, value_dim: int, **like: Any
    ) -> KeyValueState:
        """No slots yet, for ``rows`` = (batch, key-value heads); ``like``: device and dtype."""
        batch, device = rows[0], like["device"]
        return cls(
            seen=torch.zeros(batch, dtype=torch.long, device=device),
            keys=torch.zeros(*rows, 0, key_dim, **like),
            values=torch.zeros(*rows, 0, value_dim, **like),
            keep=torch.zeros(batch, 0, dtype=torch.bool, device=device),
            positions=torch.zeros(batch, 0, dtype=torch.long, device=device),
        )

    def append(self, k: Tensor, v: Tensor, positions: Tensor, keep: Tensor | None) -> KeyValueState:
        """With the keys and values (B, H_kv, L, ...) of new tokens behind the old ones."""
        if keep is None:
            keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        return KeyValueState(
            seen=self.seen + keep.sum(1),
            keys=torch.cat((self.keys, k.to(self.keys.dtype)), 2),
            values=torch.cat((self.values, v.to(self.values.dtype)), 2),
            keep=torch.cat((self.keep, keep), 1),
            positions=torch.cat((self.positions, positions.expand(k.shape[0], -1)), 1),
        )

    def last(self, count: int | None) -> KeyValueState:
        """Only the last ``count`` real tokens of each row (None: all)."""
        size = self.keys.shape[2]
        if count is None or size <= count:
            return self
        order = torch.argsort(self.keep.to(torch.uint8), dim=1, stable=True)[:, size - count :]
        return KeyValueState(
            seen=self.seen,
            keys=gather_rows(self.keys.transpose(1, 2), order).transpose(1, 2),
            values=gather_rows(self.values.transpose(1, 2), order).transpose(1, 2),
            keep=self.keep.gather(1, order),
            positions=self.positions.gather(1, order),
        )


@state
class ContextState(State):
    """Keys and values of a context, projected once and read by every step of cross-attention."""

    seen: Tensor
    keys: Tensor
    """(B, H_kv, S, D)"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    keep: Tensor
    """(B, S) bool"""
