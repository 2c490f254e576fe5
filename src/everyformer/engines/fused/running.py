"""Running averages in one pass over the sequence, chunks in parallel.

Every chunk is summed up by itself; then every chunk takes in the sums of all chunks before it (in
the backward pass after it) and goes through its tokens once more. About sqrt(S) tokens a chunk make
both parts alike in length.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.ranges import widened

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
GROUP = tl.constexpr(16)
"""chunks whose sums are read at once"""


def forward(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """lse (B, S, H, K), float32, and o (B, S, H, V) in v's dtype of k (B, S, H, K), v."""
    lse = torch.empty(k.shape, dtype=widened(k).dtype, device=k.device)
    o = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    cut, k, v = _cut(k, v), _rows(k), _rows(v)
    top, weight = (lse.new_empty(cut.rows, cut.chunks, cut.keys) for _ in range(2))
    summed = lse.new_empty(cut.rows, cut.chunks, cut.width)
    strides = k.stride(0), k.stride(1), v.stride(0), v.stride(1)
    _sum_chunks[cut.grid](k, v, top, weight, summed, *strides, *cut.numbers, **cut.constants)
    _average[cut.grid](k, v, top, weight, summed, lse, o, *strides, *cut.numbers, **cut.constants)
    return lse, o


def backward(
    k: Tensor, v: Tensor, lse: Tensor, o: Tensor, grad_lse: Tensor | None, grad_o: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v, in their dtypes."""
    dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (k, v))
    cut, k, v, g = _cut(k, v), _rows(k), _rows(v), _rows(grad_o)
    above = None if grad_lse is None else grad_lse.contiguous()
    dweight = lse.new_empty(cut.rows, cut.chunks, cut.keys)
    dsum = lse.new_empty(cut.rows, cut.chunks, cut.width)
    saved = lse, o.contiguous(), above, g, dweight, dsum
    _sum_chunks_back[cut.grid](*saved, g.stride(0), g.stride(1), *cut.numbers, **cut.constants)
    _differentiate[cut.grid](
        k, v, *saved, dk, dv, k.stride(0), k.stride(1), v.stride(0), v.stride(1), g.stride(0),
        g.stride(1), *cut.numbers, **cut.constants,
    )  # fmt: skip
    return dk, dv


class _Cut(NamedTuple):
    """The division of B rows of S tokens among programs."""

    rows: int
    length: int
    chunks: int
    heads: int
    values: int
    """channels of a head; with a key for each channel all heads count as one"""
    keys: int
    """keys of a token: one for each head or channel"""
    chunk: int
    block: int
    """channels of a program, a power of two"""

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.values

    @property
    def grid(self) -> tuple[int, int, int]:
        """Programs: chunks of rows, heads, blocks of channels."""
        return self.rows * self.chunks, self.heads, triton.cdiv(self.values, self.block)

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """Arguments of all kernels."""
        return self.length, self.chunks, self.values, self.keys, self.width

    @property
    def constants(self) -> dict[str, Any]:
        """Constants that they are compiled for."""
        return {
            "CHUNK": self.chunk,
            "SHARED": self.keys != self.width,
            "BLOCK": self.block,
            "num_warps": min(max(self.block // 128, 1), 8),
        }


def _cut(k: Tensor, v: Tensor) -> _Cut:
    rows, length, heads, values = v.shape
    chunk = _chunk_length(length)
    chunks = triton.cdiv(length, chunk)
    if k.shape[3] == values:
        width = heads * values
        block = min(128, triton.next_power_of_2(width))
        return _Cut(rows, length, chunks, 1, width, width, chunk, block)
    # the gradient of a shared key sums over all of a head's channels
    return _Cut(rows, length, chunks, heads, values, heads, chunk, triton.next_power_of_2(values))


def _chunk_length(length: int) -> int:
    """Tokens of a chunk, a power of two."""
    return max(16, triton.next_power_of_2(round(length**0.5)))


def _rows(t: Tensor) -> Tensor:
    """``t`` (B, S, H, c) as (B, S, H c), channels side by side."""
    t = t.flatten(2)
    return t if t.stride(2) == 1 else t.contiguous()


@triton.jit
def _place(chunks, values, SHARED: tl.constexpr, BLOCK: tl.constexpr):
    """Row, chunk, and of a block of channels: their keys, themselves, which exist and have keys."""
    at, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    value = head * values + channel
    inside = channel < values
    if SHARED:
        key, first = head + 0 * channel, channel == 0
    else:
        key, first = value, inside
    return at // chunks, at % chunks, key, value, inside, first


@kernel
def _sum_chunks(
    k, v, tops, weights, sums,
    k_row, k_step, v_row, v_step,
    length, chunks, values, keys, width,
    CHUNK: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Largest key, sum of weights and weighted sum of every chunk."""
    row, n, key, value, inside, first = _place(chunks, values, SHARED, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    weight, summed = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for t in range(n * CHUNK, tl.minimum((n + 1) * CHUNK, length)):
        x = tl.load(k + row * k_row + t * k_step + key, inside, 0.0).to(tl.float32)
        y = tl.load(v + row * v_row + t * v_step + value, inside, 0.0).to(tl.float32)
        higher = tl.maximum(top, x)
        reached = tl.maximum(higher, LOWEST)
        fade, new = tl.exp(top - reached), tl.exp(x - reached)
        weight = weight * fade + new
        summed = summed * fade + new * y
        top = higher
    at = row * chunks + n
    tl.store(tops + at * keys + key, top, first)
    tl.store(weights + at * keys + key, weight, first)
    tl.store(sums + at * width + value, summed, inside)


@kernel
def _average(
    k, v, tops, weights, sums, lse,
    o, k_row, k_step, v_row, v_step,
    length, chunks, values, keys, width,
    CHUNK: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Averages and log-sums of a chunk, after the sums of all chunks before it."""
    row, n, key, value, inside, first = _place(chunks, values, SHARED, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    weight, summed = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for j in range(0, n, GROUP):
        before = j + tl.arange(0, GROUP)
        mask = (before < n)[:, None] & inside[None, :]
        chunk = (row * chunks + before)[:, None]
        x = tl.load(tops + chunk * keys + key[None, :], mask, float("-inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        reached = tl.maximum(higher, LOWEST)
        fade, new = tl.exp(top - reached), tl.exp(x - reached[None, :])
        more = tl.load(weights + chunk * keys + key[None, :], mask, 0.0)
        weight = weight * fade + tl.sum(new * more, 0)
        more = tl.load(sums + chunk * width + value[None, :], mask, 0.0)
        summed = summed * fade + tl.sum(new * more, 0)
        top = higher
    for t in range(n * CHUNK, tl.minimum((n + 1) * CHUNK, length)):
        x = tl.load(k + row * k_row + t * k_step + key, inside, 0.0).to(tl.float32)
        y = tl.load(v + row * v_row + t * v_step + value, inside, 0.0).to(tl.float32)
        higher = tl.maximum(top, x)
        reached = tl.maximum(higher, LOWEST)
        fade, new = tl.exp(top - reached), tl.exp(x - reached)
        weight = weight * fade + new
        summed = summed * fade + new * y
        top = higher
        at = row * length + t
        # the largest key so far adds 1 to the sum of weights: only a row without tokens is below
        tl.store(lse + at * keys + key, reached + tl.log(weight), first)
        tl.store(o + at * width + value, summed / tl.maximum(weight, 0.5), inside)


@triton.jit
def _above(
    at, o, above, g, key, value, inside,
    keys, width, SHARED: tl.constexpr,
):  # fmt: skip
    """The gradients g of a token's average and c = dlse - g o of its log-sum."""
    x = tl.load(g, inside, 0.0).to(tl.float32)
    c = -x * tl.load(o + at * width + value, inside, 0.0).to(tl.float32)
    if SHARED:
        c = tl.sum(c, 0) + tl.zeros_like(c)
    if above is not None:
        c += tl.load(above + at * keys + key, inside, 0.0)
    return x, c


@kernel
def _sum_chunks_back(
    lse, o, above, g, dweights, dsums,
    g_row, g_step,
    length, chunks, values, keys, width,
    CHUNK: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums over every chunk of exp(-lse_t) g_t and of exp(-lse_t) c_t, times exp(lse) of its first
    token."""
    row, n, key, value, inside, first = _place(chunks, values, SHARED, BLOCK)
    start, stop = n * CHUNK, tl.minimum((n + 1) * CHUNK, length)
    dsum, dweight = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    later = tl.load(lse + (row * length + stop - 1) * keys + key, inside, 0.0)
    later = tl.maximum(later, LOWEST)
    for i in range(stop - start):
        t = stop - 1 - i
        at = row * length + t
        level = tl.maximum(tl.load(lse + at * keys + key, inside, 0.0), LOWEST)
        fade = tl.exp(level - later)
        from_g = g + row * g_row + t * g_step + value
        x, c = _above(at, o, above, from_g, key, value, inside, keys, width, SHARED)
        dsum, dweight, later = dsum * fade + x, dweight * fade + c, level
    at = row * chunks + n
    tl.store(dweights + at * keys + key, dweight, first)
    tl.store(dsums + at * width + value, dsum, inside)


@kernel
def _differentiate(
    k, v, lse, o, above, g,
    dweights, dsums, dk, dv, k_row, k_step,
    v_row, v_step, g_row, g_step,
    length, chunks, values, keys, width,
    CHUNK: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of a chunk's keys and values, before the sums of all chunks after it."""
    row, n, key, value, inside, first = _place(chunks, values, SHARED, BLOCK)
    start, stop = n * CHUNK, tl.minimum((n + 1) * CHUNK, length)
    dsum, dweight = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    # the level of the next chunk's first token, or of the last token of all
    later = tl.load(lse + (row * length + tl.minimum(stop, length - 1)) * keys + key, inside, 0.0)
    later = tl.maximum(later, LOWEST)
    for j in range(n + 1, chunks, GROUP):
        after = j + tl.arange(0, GROUP)
        mask = (after < chunks)[:, None] & inside[None, :]
        token, chunk = (row * length + after * CHUNK)[:, None], (row * chunks + after)[:, None]
        level = tl.load(lse + token * keys + key[None, :], mask, float("inf"))
        fade = tl.exp(later[None, :] - tl.maximum(level, LOWEST))
        dweight += tl.sum(fade * tl.load(dweights + chunk * keys + key[None, :], mask, 0.0), 0)
        dsum += tl.sum(fade * tl.load(dsums + chunk * width + value[None, :], mask, 0.0), 0)
    for i in range(stop - start):
        t = stop - 1 - i
        at = row * length + t
        level = tl.maximum(tl.load(lse + at * keys + key, inside, 0.0), LOWEST)
        fade = tl.exp(level - later)
        from_g = g + row * g_row + t * g_step + value
        x, c = _above(at, o, above, from_g, key, value, inside, keys, width, SHARED)
        dsum, dweight, later = dsum * fade + x, dweight * fade + c, level
        p = tl.exp(tl.load(k + row * k_row + t * k_step + key, inside, 0.0).to(tl.float32) - level)
        y = tl.load(v + row * v_row + t * v_step + value, inside, 0.0).to(tl.float32)
        moved = p * dsum * y
        if SHARED:
            moved = tl.sum(moved, 0) + tl.zeros_like(moved)
        tl.store(dk + at * keys + key, moved + p * dweight, first)
        tl.store(dv + at * width + value, p * dsum, inside)
