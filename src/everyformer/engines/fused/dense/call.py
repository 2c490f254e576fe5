"""Averages with a bias for every pair and their gradients, from the operators' arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from everyformer.engines.fused.dense.averages import average
from everyformer.engines.fused.dense.gradients import (
    differentiate_columns,
    differentiate_rows,
    differentiate_tokens,
)

TILES = {True: 32, False: 64}
"""queries, keys and channels of a tile: fewer where values are in float32"""


def forward(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
    causal: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o, the log-sums of its weights, and nothing: what is ``keep`` elsewhere is made again."""
    call = _Call.of(k, v, rows, columns, offset, causal)
    o = v.new_empty(call.batch, call.length, call.heads, call.values)
    lse = v.new_empty(*o.shape[:3], k.shape[3], dtype=torch.float32)
    average[call.over(call.length, call.batch * call.value_blocks)](
        *call.read, o, lse, *call.strides, *call.of_bias, *call.numbers,
        call.tiles(call.length), call.value_blocks, **call.constants,
    )  # fmt: skip
    return o, lse, lse.new_empty(0)


def backward(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
    o: Tensor, total: Tensor, saved: Tensor, grad_o: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of k, v, rows and columns; ``total`` holds the log-sums, ``saved`` nothing."""
    call, g = _Call.of(k, v, rows, columns, offset, causal), stepped(grad_o)
    read = *call.read, o.contiguous(), total.contiguous(), g
    strides = *call.strides, *g.stride()[:3], *call.of_bias
    dv, constants = v.new_empty(v.shape), call.constants
    shape = k.shape if not call.shared else (*k.shape[:3], call.value_blocks)
    dk = k.new_empty(shape, dtype=torch.float32 if call.shared else k.dtype)
    differentiate_tokens[call.over(call.source, call.batch * call.value_blocks)](
        *read, dk, dv, *strides, *call.numbers, call.tiles(call.source), call.value_blocks,
        **constants,
    )  # fmt: skip
    dk = dk.sum(3, keepdim=True).to(k.dtype) if call.shared else dk
    # of factors, rows of the batch side by side: their gradients are small
    parts, each = (1, call.batch) if columns is None else (call.batch, 1)
    # what no query sees is not written
    drows = total.new_zeros(parts, *rows.shape)
    differentiate_rows[call.over(call.length, parts)](
        *read, drows, *strides, *call.numbers, call.tiles(call.length), each, **constants
    )
    if columns is None:
        return dk, dv, drows[0].to(rows.dtype), total.new_empty(0).to(rows.dtype)
    dcolumns = total.new_empty(parts, *columns.shape)
    differentiate_columns[call.over(call.source, parts)](
        *read, dcolumns, *strides, *call.numbers, call.tiles(call.source), each, **constants
    )
    return dk, dv, drows.sum(0).to(rows.dtype), dcolumns.sum(0).to(rows.dtype)


@dataclass(frozen=True)
class Pairs:
    """Keys and values that are averaged, channels side by side."""

    k: Tensor
    v: Tensor

    @property
    def batch(self) -> int:
        return self.v.shape[0]

    @property
    def source(self) -> int:
        return self.v.shape[1]

    @property
    def heads(self) -> int:
        return self.v.shape[2]

    @property
    def values(self) -> int:
        return self.v.shape[3]

    @property
    def shared(self) -> bool:
        """Whether the channels of a head have one key."""
        return self.k.shape[3] != self.values

    @property
    def tile(self) -> int:
        """Queries, keys and channels of a tile."""
        return TILES[self.v.dtype == torch.float32]

    @property
    def value_blocks(self) -> int:
        """Blocks of a head's channels."""
        return self.tiles(self.values)

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in k and v to the next row, token and head."""
        return *self.k.stride()[:3], *self.v.stride()[:3]

    def tiles(self, count: int) -> int:
        """Tiles of ``count`` queries, keys or channels."""
        return triton.cdiv(count, self.tile)


@dataclass(frozen=True)
class _Call(Pairs):
    """The arguments, channels side by side."""

    rows: Tensor
    columns: Tensor | None
    offset: Tensor | None
    causal: bool

    @classmethod
    def of(
        cls, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
        causal: bool,
    ) -> _Call:  # fmt: skip
        """The call on these arguments."""
        columns = None if columns is None else stepped(columns)
        return cls(stepped(k), stepped(v), stepped(rows), columns, offset, causal)

    @property
    def length(self) -> int:
        return self.rows.shape[1]

    @property
    def read(self) -> tuple[Tensor | None, ...]:
        """Arguments of all kernels."""
        return self.k, self.v, self.rows, self.columns, self.offset

    @property
    def of_bias(self) -> tuple[int, int, int, int]:
        """Steps in both factors of w to the next head and position."""
        columns = self.rows if self.columns is None else self.columns
        return self.rows.stride(0), self.rows.stride(1), columns.stride(0), columns.stride(1)

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """Heads, queries, keys, channels and the rank of w."""
        return self.heads, self.length, self.source, self.values, self.rows.shape[2]

    @property
    def constants(self) -> dict[str, Any]:
        """Constants that kernels are compiled for."""
        exact = self.v.dtype == torch.float32
        rank = 1 if self.columns is None else self.rows.shape[2]
        return {
            "CAUSAL": self.causal,
            "SHARED": self.shared,
            "TILE": self.tile,
            "RANK": max(16, triton.next_power_of_2(rank)),
            "PRECISION": "ieee" if exact else "tf32",
            # an error of w is one of the exponent
            "OF_BIAS": "ieee" if exact else "tf32x3",
            "num_warps": 4 if exact else 8,
            "num_stages": 2,
        }

    def over(self, positions: int, others: int) -> tuple[int, int]:
        """Programs: blocks of positions of all heads, and what else stands side by side."""
        return self.heads * self.tiles(positions), others


def stepped(t: Tensor) -> Tensor:
    """``t``, channels side by side."""
    return t if t.stride(-1) == 1 else t.contiguous()
