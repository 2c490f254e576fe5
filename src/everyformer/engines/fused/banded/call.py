"""Averages with a bias inside a band and their gradients, from the operators' arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from everyformer.engines.fused import running
from everyformer.engines.fused.banded.averages import average, sum_blocks
from everyformer.engines.fused.banded.gradients import (
    differentiate_bias,
    differentiate_far,
    differentiate_tokens,
)
from everyformer.engines.fused.dense.call import Pairs, stepped

PROGRAMS = 256
"""programs for the bias's gradient, to which rows of the batch are divided where there are fewer"""


def forward(k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int) -> tuple[Tensor, Tensor]:
    """o (B, L, H, V) in v's dtype and the log-sums (B, L, H, K) of its weights, float32."""
    call = _Call.of(k, v, bias, causal, lead)
    o = v.new_empty(call.batch, call.length, call.heads, call.values)
    lse = k.new_empty(*o.shape[:3], k.shape[3], dtype=torch.float32)
    average[call.over(call.queries)](
        *call.read, *_outside(call), o, lse, *call.strides, *call.of_bias,
        *call.numbers, call.value_blocks, **call.constants,
    )  # fmt: skip
    return o, lse


def backward(
    k: Tensor, v: Tensor, bias: Tensor, o: Tensor, total: Tensor, grad_o: Tensor, causal: bool,
    lead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of k, v and bias, in their dtypes; ``total`` holds the log-sums."""
    call, g = _Call.of(k, v, bias, causal, lead), stepped(grad_o)
    saved, strides = (o.contiguous(), total.contiguous(), g), (*call.strides, *g.stride()[:3])
    dv, dk = v.new_empty(v.shape), k.new_empty(k.shape)
    if call.shared:
        dk = total.new_empty(*k.shape[:3], call.value_blocks)
    differentiate_tokens[call.over(call.blocks)](
        *call.read, *_of_blocks(call, *saved), *saved, dk, dv, *strides, *call.of_bias,
        *call.numbers, call.blocks, call.value_blocks, **call.constants,
    )  # fmt: skip
    dk = dk.sum(3, keepdim=True).to(k.dtype) if call.shared else dk
    tiles = call.heads * call.queries * call.window
    each = triton.cdiv(call.batch, triton.cdiv(PROGRAMS, tiles))
    parts = triton.cdiv(call.batch, each)
    # what stands for no token is not written
    dbias = total.new_zeros(parts, call.heads, call.length, bias.shape[2])
    differentiate_bias[tiles, parts](
        *call.read, *saved, dbias, *strides, *call.of_bias, call.batch, *call.numbers, each,
        **call.constants,
    )  # fmt: skip
    return dk, dv, dbias.sum(0).sum_to_size(bias.shape).to(bias.dtype)


@dataclass(frozen=True)
class _Call(Pairs):
    """The arguments, channels side by side."""

    bias: Tensor
    causal: bool
    lead: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int) -> _Call:
        """The call on these arguments."""
        return cls(stepped(k), stepped(v), stepped(bias), causal, lead)

    @property
    def length(self) -> int:
        return self.source - self.lead

    @property
    def queries(self) -> int:
        """Blocks of queries."""
        return self.tiles(self.length)

    @property
    def window(self) -> int:
        """Blocks of keys that hold the bands of a block of queries."""
        return 1 + self.tiles(self.bias.shape[2] - 1)

    @property
    def blocks(self) -> int:
        """Blocks of keys: those of the windows, one before and, to be alike, one after them."""
        return self.queries + self.window + 1

    @property
    def read(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of pairs."""
        return self.k, self.v, self.bias

    @property
    def of_bias(self) -> tuple[int, int]:
        """Steps in the bias to the next head and query."""
        return self.bias.stride(0), self.bias.stride(1) if self.bias.shape[1] > 1 else 0

    @property
    def first(self) -> int:
        """The token that the first query's band begins with, below 0 before the row."""
        offsets = self.bias.shape[2]
        return self.lead - (offsets - 1 if self.causal else offsets // 2)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Heads, queries, keys, channels, offsets, and the blocks' places."""
        sizes = self.heads, self.length, self.source, self.values, self.bias.shape[2]
        return *sizes, self.first, self.queries, self.window

    @property
    def constants(self) -> dict[str, Any]:
        """Constants that kernels with products are compiled for."""
        exact = self.v.dtype == torch.float32
        precision = "ieee" if exact else "tf32"
        return {**self.simple, "CAUSAL": self.causal, "PRECISION": precision, "num_stages": 2}

    @property
    def simple(self) -> dict[str, Any]:
        """Constants that kernels without products are compiled for."""
        warps = 4 if self.v.dtype == torch.float32 else 8
        return {"SHARED": self.shared, "TILE": self.tile, "num_warps": warps}

    def over(self, blocks: int) -> tuple[int, int]:
        """Programs: blocks of queries or keys of all heads, and of channels of all rows."""
        return self.heads * blocks, self.batch * self.value_blocks


def _sums(call: _Call) -> tuple[Tensor, Tensor]:
    """Log-sums and averages (B, blocks, H, V) of the blocks of keys."""
    shape = call.batch, call.blocks, call.heads, call.values
    lse, o = (call.v.new_empty(shape, dtype=torch.float32) for _ in range(2))
    sum_blocks[call.over(call.blocks)](
        call.k, call.v, lse, o, *call.strides, call.heads, call.source, call.values, call.first,
        call.blocks, call.value_blocks, **call.simple,
    )  # fmt: skip
    return lse, o


class _End(NamedTuple):
    """Running averages of blocks of keys, for block i of queries of those 0 .. i, from one end."""

    late: bool
    """whether from the last token on, queries likewise"""
    blocks: Tensor
    """log-sums (B, queries, H, V) of the blocks"""
    lse: Tensor
    o: Tensor

    def turned(self, t: Tensor) -> Tensor:
        """``t`` (B, blocks, ...) in the order of this end; again, as it was."""
        return t.flip(1) if self.late else t

    def share(self, far: Tensor) -> Tensor:
        """The part of this end in the log-sums ``far`` of both, in its order."""
        return torch.exp(self.lse - self.turned(far).clamp(min=torch.finfo(far.dtype).min))


def _ends(call: _Call, lse: Tensor, o: Tensor) -> tuple[list[_End], Tensor]:
    """Averages before and after the windows, and log-sums (B, queries, H, V) of both together."""
    ends = []
    for late in (False,) if call.causal else (False, True):
        blocks, averages = ((t.flip(1) if late else t)[:, : call.queries] for t in (lse, o))
        ends.append(_End(late, blocks, *running.forward(blocks, averages)))
    return ends, torch.stack([end.turned(end.lse) for end in ends]).logsumexp(0)


def _outside(call: _Call) -> tuple[Tensor, Tensor]:
    """Log-sums and averages (B, queries, H, V) of all that lies outside the windows."""
    ends, far = _ends(call, *_sums(call))
    return far, torch.stack([end.turned(end.share(far) * end.o) for end in ends]).sum(0)


def _of_blocks(call: _Call, o: Tensor, lse: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sums (B, blocks, H, V) of the blocks of keys, and sums of p g and of p c over all queries
    whose windows are elsewhere, p the share of the block."""
    logs, averages = _sums(call)
    ends, far = _ends(call, logs, averages)
    dfar, cfar = torch.empty_like(far), torch.empty_like(far)
    differentiate_far[call.over(call.queries)](
        far, o, lse, g, dfar, cfar, *g.stride()[:3], call.heads, call.length, call.values,
        call.queries, call.value_blocks, **call.simple,
    )  # fmt: skip
    dblock, cblock = torch.zeros_like(logs), torch.zeros_like(logs)
    # with values of zero the gradients of keys are the sums of p c
    zero = torch.zeros_like(far)
    for end in ends:
        d, c = (end.share(far) * end.turned(t) for t in (dfar, cfar))
        c, d = running.backward(end.blocks, zero, end.lse, zero, c, d)
        inside = slice(-call.queries, None) if end.late else slice(call.queries)
        dblock[:, inside] += end.turned(d)
        cblock[:, inside] += end.turned(c)
    return logs, dblock, cblock
