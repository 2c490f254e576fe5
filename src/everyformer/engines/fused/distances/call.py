"""Attention that sees distances and its gradients, from `Distances` and what they act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from everyformer.engines.fused.distances.averages import average
from everyformer.engines.fused.distances.gradients import (
    differentiate_columns,
    differentiate_queries,
    differentiate_tokens,
)

TILES = {True: 32, False: 64}
"""queries, keys and columns of a tile: fewer in float32"""
Tables = Sequence[Tensor | None]
"""vectors (H, C, D), numbers (H, C) and vectors of values (H, C, Dv)"""


def forward(
    q: Tensor, p: Tensor | None, k: Tensor, v: Tensor, tables: Tables, causal: bool, factors: bool
) -> tuple[Tensor, Tensor]:
    """o (B, H, L, Dv) and the log-sums (B, H, L) of its weights."""
    call = _Call(q, p, k, v, tables, causal, factors)
    o, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
    average[call.over(call.length)](
        *call.read, o, lse, *call.sizes, call.tiles(call.length), **call.constants
    )
    return o, lse


def backward(
    q: Tensor, p: Tensor | None, k: Tensor, v: Tensor, tables: Tables, o: Tensor, lse: Tensor,
    grad_o: Tensor, causal: bool, factors: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, p, k, v and of the tables."""
    call, g = _Call(q, p, k, v, tables, causal, factors), grad_o.contiguous()
    read = *call.read, lse, (g.float() * o.float()).sum(-1), g
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    dp = None if p is None else torch.empty_like(p)
    differentiate_queries[call.over(call.length)](
        *read, dq, dp, *call.sizes, call.tiles(call.length), **call.constants
    )
    differentiate_tokens[call.over(call.source)](
        *read, dk, dv, *call.sizes, call.tiles(call.source), **call.constants
    )
    of_tables = [None if t is None else torch.empty_like(t) for t in tables]
    blocks = call.tiles(call.columns)
    differentiate_columns[(call.heads * blocks,)](
        *read, *of_tables, q.shape[0], *call.sizes, blocks, **call.constants
    )
    return dq, dp, dk, dv, *of_tables


@dataclass(frozen=True)
class _Call:
    """The arguments, all contiguous."""

    q: Tensor
    p: Tensor | None
    k: Tensor
    v: Tensor
    tables: Tables
    causal: bool
    factors: bool

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def length(self) -> int:
        return self.q.shape[2]

    @property
    def source(self) -> int:
        return self.k.shape[2]

    @property
    def columns(self) -> int:
        """Columns of the tables: those that a pair can meet."""
        return self.source if self.causal else self.length + self.source - 1

    @property
    def read(self) -> tuple[Tensor | None, ...]:
        """Arguments of all kernels."""
        return self.q, self.p, self.k, self.v, *self.tables

    @property
    def sizes(self) -> tuple[int, ...]:
        """Heads, queries, keys, columns, channels of keys and of values."""
        channels = self.q.shape[3], self.v.shape[3]
        return self.heads, self.length, self.source, self.columns, *channels

    @property
    def constants(self) -> dict[str, Any]:
        """Constants that kernels are compiled for."""
        exact = self.q.dtype == torch.float32
        by_values = not exact and self.tables[2] is not None
        return {
            "CAUSAL": self.causal,
            "FACTORS": self.factors,
            "TILE": self.tile,
            "SIZE": max(16, triton.next_power_of_2(self.q.shape[3])),
            "WIDE": max(16, triton.next_power_of_2(self.v.shape[3])),
            "PRECISION": "tf32x3" if exact else "tf32",
            # as measured on an H100: tables of values take registers
            "num_warps": 8 if by_values else 4,
            "num_stages": 2 if by_values else 1,
        }

    @property
    def tile(self) -> int:
        return TILES[self.q.dtype == torch.float32]

    def tiles(self, count: int) -> int:
        """Tiles of ``count`` queries, keys or columns."""
        return triton.cdiv(count, self.tile)

    def over(self, positions: int) -> tuple[int]:
        """Programs: blocks of positions of all heads of all rows."""
        return (self.q.shape[0] * self.heads * self.tiles(positions),)
