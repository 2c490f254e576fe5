"""Kernel attention and its gradients: chunks side by side within a segment, segments in turn.

Sums of chunks are made, passed on to be the states before each, and read. The backward pass makes
the states again from that at the segment's start. Where q, k and v are half, so are the factors of
products as long as they are their own; all sums, states and factors of levels are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from everyformer.engines.fused.kernel.answers import answer
from everyformer.engines.fused.kernel.gradients import (
    differentiate_features,
    differentiate_values,
    read_above,
)
from everyformer.engines.fused.kernel.levels import read_levels
from everyformer.engines.fused.kernel.states import pass_back, pass_states, sum_chunks
from everyformer.engines.kernel.chunks import CHUNK, segment_count, segment_length

ENTRIES = 512
"""of a state, that one program passes on"""
TILES = {True: 32, False: 64}
"""features or values of a product at once, at most: fewer where one is in float32"""


def forward(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
    gate: Tensor | None, sums: Tensor, top: Tensor | None, kind: str, eps: float,
    *_of_map: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The results of the operator `kernel_attention`, from its arguments; features were made."""
    call = _Call.of(q, k, v, padding_mask, level, gate)
    y = v.new_empty(call.batch, call.length, call.heads, call.values)
    totals = sums.new_empty(call.batch, call.length, call.heads, 1)
    starts = sums.new_empty(call.segments + 1, *sums.shape)
    starts[0] = sums
    tops = sums.new_empty(0)
    if top is not None:
        tops = top.new_empty(call.segments + 1, *top.shape)
        tops[0] = top
    for n, part in enumerate(call.parts()):
        call.read_states(part, starts[n], _of(tops, n), starts[n + 1], _of(tops, n + 1))
        answer[call.over(part)](
            call.q, call.k, call.v, call.levels.weights, call.levels.highest, part.tops,
            part.states, y, totals, *call.strides, *call.numbers(part), eps, kind, **call.tiles,
        )  # fmt: skip
    last, tops = (tops.clone(), tops) if top is None else (tops[-1].clone(), tops.flatten(1))
    return y, totals, starts[-1].clone(), last, starts.flatten(1, 2), tops


def backward(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
    gate: Tensor | None, y: Tensor, totals: Tensor, after: Tensor, starts: Tensor, tops: Tensor,
    grad_y: Tensor, grad_after: Tensor | None, kind: str, eps: float, *_of_map: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The results of its backward pass, likewise."""
    call, g = _Call.of(q, k, v, padding_mask, level, gate), _stepped(grad_y.transpose(1, 2))
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    moved = starts.new_empty(v.shape[:3])
    down, scale, last = (torch.empty_like(call.levels.own) for _ in range(3))
    dsums = torch.zeros_like(after) if grad_after is None else grad_after.float().contiguous()
    levels, of_g = call.levels, g.stride()[:3]
    read = levels.weights, levels.highest, levels.own
    for n, part in reversed(list(enumerate(call.parts()))):
        call.read_states(part, starts[n], _of(tops, n), torch.empty_like(after), None)
        numbers, dstates, before = call.numbers(part), torch.empty_like(part.states), dsums
        read_above[call.over(part)](
            y, totals, g, levels.highest, part.tops, down, scale, last, *of_g, *numbers, eps,
            kind, CHUNK=CHUNK, VALUES=call.tiles["VALUES"],
        )  # fmt: skip
        call.sum_chunks(part, call.q, g, scale, last, dstates)
        dsums = torch.empty_like(after)
        pass_back[call.over_states](
            dstates, part.tops, levels.largest, before, dsums, call.size, part.start,
            part.chunks, call.chunks, ENTRIES,
        )  # fmt: skip
        differentiate_features[call.over(part)](
            call.q, call.k, call.v, g, *read, part.tops, totals, down, part.states, dstates, dq,
            dk, moved, *call.strides, *of_g, *numbers, **call.tiles,
        )  # fmt: skip
        differentiate_values[call.over(part)](
            call.q, call.k, g, *read, part.tops, totals, dstates, dv, *call.strides[:6], *of_g,
            *numbers, **call.tiles,
        )  # fmt: skip
    return dq, dk, dv, *_of_logs(moved, level, gate, after, grad_after), dsums


def _of_logs(
    moved: Tensor, level: Tensor | None, gate: Tensor | None, after: Tensor,
    grad_after: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of levels and gates, of shape (0,) where there are none.

    A log gate takes away from the levels of its own and all later keys, and adds to the end's.
    """
    dlevel, dgate = moved.new_empty(0), moved.new_empty(0)
    if level is not None:
        dlevel = moved.to(level.dtype)
    if gate is not None:
        dgate = -moved.flip(2).cumsum(2).flip(2)
        if grad_after is not None:
            dgate += (grad_after * after).sum((2, 3))[..., None]
        dgate = dgate.to(gate.dtype)
    return dlevel, dgate


class _Part(NamedTuple):
    """A segment."""

    start: int
    """its first chunk"""
    chunks: int
    states: Tensor
    """(B H, chunks, M, D_v + 1): the chunks' sums, then the states before them"""
    tops: Tensor
    """(B H, chunks) their levels"""


class _Levels(NamedTuple):
    """Results of `read_levels`: of each token (B H, chunks C), of each chunk (B H, chunks)."""

    weights: Tensor
    highest: Tensor
    own: Tensor
    largest: Tensor
    faded: Tensor


class _Call(NamedTuple):
    """The arguments, channels side by side, and how they are divided."""

    q: Tensor
    k: Tensor
    v: Tensor
    levels: _Levels
    batch: int
    heads: int
    length: int
    features: int
    values: int
    gated: bool

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
        gate: Tensor | None,
    ) -> _Call:  # fmt: skip
        """The call on these arguments, whose levels are read."""
        batch, heads, length, values = v.shape
        rows, chunks = batch * heads, triton.cdiv(length, CHUNK)
        tokens = [v.new_empty(rows, chunks * CHUNK, dtype=torch.float32) for _ in range(3)]
        of_chunks = [v.new_empty(rows, chunks, dtype=torch.float32) for _ in range(2)]
        level, gate, padding_mask = (
            None if t is None else t.contiguous() for t in (level, gate, padding_mask)
        )
        read_levels[rows * chunks,](
            level, gate, padding_mask, *tokens, *of_chunks, length, heads, chunks, CHUNK
        )
        q, k, v = _stepped(q), _stepped(k), _stepped(v)
        levels = _Levels(*tokens, *of_chunks)
        return cls(q, k, v, levels, batch, heads, length, q.shape[3], values, gate is not None)

    @property
    def rows(self) -> int:
        """Heads of all rows."""
        return self.batch * self.heads

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.levels.largest.shape[1]

    @property
    def segments(self) -> int:
        """Segments of a row."""
        return segment_count(self.length, self.features, self.values, self.v.device)

    @property
    def size(self) -> int:
        """Entries of a state."""
        return self.features * (self.values + 1)

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in q, k and v to the next row, head and token."""
        return tuple(step for t in (self.q, self.k, self.v) for step in t.stride()[:3])

    @property
    def tiles(self) -> dict[str, Any]:
        """Constants that kernels are compiled for."""
        floats = [t.dtype == torch.float32 for t in (self.q, self.k, self.v)]
        most = TILES[any(floats)]
        # float32 features of half values: products are as exact as float32 nearly
        precision = "ieee" if floats[2] else "tf32x3" if any(floats) else "tf32"
        # a gate's gradient is what is left of a sum over all later tokens; float16 ends at 65,504
        if precision == "tf32" and not self.gated and self.v.dtype == torch.bfloat16:
            precision = "bfloat16"
        return {
            "CHUNK": CHUNK,
            "FEATURES": min(most, max(16, triton.next_power_of_2(self.features))),
            "VALUES": min(most, max(16, triton.next_power_of_2(self.values))),
            "PRECISION": precision,
            "num_warps": 4,
            "num_stages": 2,
        }

    @property
    def over_states(self) -> tuple[int, int]:
        """Programs that pass on states."""
        return self.rows, triton.cdiv(self.size, ENTRIES)

    def over(self, part: _Part) -> tuple[int]:
        """Programs, one for each chunk."""
        return (self.rows * part.chunks,)

    def numbers(self, part: _Part) -> tuple[int, ...]:
        """Numbers that kernels of chunks read."""
        sizes = self.length, self.heads, self.features, self.values
        return *sizes, part.start, part.chunks, self.chunks * CHUNK

    def parts(self) -> Iterator[_Part]:
        """The segments in turn."""
        each = segment_length(self.features, self.values, self.v.device) // CHUNK
        for start in range(0, self.chunks, each):
            chunks = min(each, self.chunks - start)
            states = self.levels.own.new_empty(self.rows, chunks, self.features, self.values + 1)
            yield _Part(start, chunks, states, states.new_empty(self.rows, chunks))

    def sum_chunks(
        self, part: _Part, a: Tensor, b: Tensor, scale: Tensor, last: Tensor, sums: Tensor
    ) -> None:
        """Fills ``sums`` (B H, chunks, M, D_v + 1) with those of a (s b | u)^T."""
        tiles = self.tiles
        over = (
            triton.cdiv(self.features, tiles["FEATURES"]),
            triton.cdiv(self.values, tiles["VALUES"]),
        )
        sum_chunks[*self.over(part), *over](
            a, b, scale, last, sums, *a.stride()[:3], *b.stride()[:3], *self.numbers(part), **tiles
        )

    def read_states(
        self, part: _Part, before: Tensor, top: Tensor | None, after: Tensor,
        top_after: Tensor | None,
    ) -> None:  # fmt: skip
        """Fills ``part`` with the states before its chunks, ``after`` with that at its end."""
        own = self.levels.own
        self.sum_chunks(part, self.k, self.v, own, own, part.states)
        pass_states[self.over_states](
            part.states, part.tops, self.levels.largest, self.levels.faded, before, top, after,
            top_after, self.size, part.start, part.chunks, self.chunks, ENTRIES,
        )  # fmt: skip


def _of(tops: Tensor, n: int) -> Tensor | None:
    """The level of segment ``n``, if there is one."""
    return tops[n] if tops.numel() else None


def _stepped(t: Tensor) -> Tensor:
    """``t`` (B, H, L, c), channels side by side."""
    return t if t.stride(3) == 1 else t.contiguous()
