"""Sums over chunks, and the states before them: forward in time, and their gradients backward."""

import os

import triton
import triton.language as tl

from everyformer.engines.fused.compiled import kernel
from everyformer.engines.fused.kernel.levels import LOWEST

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32; ``PRECISION`` is that of factors in float32.

    "bfloat16": a factor in float32 beside one in bfloat16 is rounded to it.
    """
    if PRECISION == "bfloat16":
        a, b = (
            a if b.dtype == tl.float32 else a.to(b.dtype),
            b if a.dtype == tl.float32 else b.to(a.dtype),
        )
    # the interpreter would multiply the bits of bfloat16
    if (a.dtype != b.dtype) or (INTERPRETED and a.dtype == tl.bfloat16):
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="tf32" if PRECISION == "bfloat16" else PRECISION)


@kernel
def sum_chunks(
    a, b, scale, last, sums, a_batch, a_head, a_step, b_batch, b_head, b_step,
    length, heads, features, values, start, chunks, padded,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums (M, D_v + 1) of a (s b | u)^T over the tokens of every chunk.

    ``scale`` holds s and ``last`` u of every token; where both are 0 nothing else is read.
    """
    at = tl.program_id(0).to(tl.int64)
    x, n = at // chunks, at % chunks
    t = (start + n) * CHUNK + tl.arange(0, CHUNK)
    m = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    d = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    s, u = tl.load(scale + x * padded + t), tl.load(last + x * padded + t)
    used = ((s != 0) | (u != 0)) & (t < length)
    place = a + x // heads * a_batch + x % heads * a_head
    here = (m < features)[:, None] & used[None, :]
    left = tl.load(place + t[None, :] * a_step + m[:, None], here, 0.0)
    place = b + x // heads * b_batch + x % heads * b_head
    here = used[:, None] & (d < values)[None, :]
    right = tl.load(place + t[:, None] * b_step + d[None, :], here, 0.0).to(tl.float32)
    into = sums + at * features * (values + 1) + m * (values + 1)
    here = (m < features)[:, None] & (d < values)[None, :]
    tl.store(into[:, None] + d[None, :], product(left, s[:, None] * right, PRECISION), here)
    if tl.program_id(2) == 0:
        tl.store(into + values, tl.sum(left.to(tl.float32) * u[None, :], 1), m < features)


@kernel
def pass_states(
    states, tops, largest, faded, before, top_before, after, top_after, size, start, chunks,
    chunks_in_all, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state before every chunk in the place of its sum, its level, and the state at the end."""
    x = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = entry < size
    state, top = tl.load(before + x * size + entry, here, 0.0), 0.0
    if top_before is not None:
        top += tl.load(top_before + x)
    place = states + x * chunks * size + entry
    added = tl.load(place, here, 0.0)
    for n in range(chunks):
        # read before the store, which the compiler may not move it across
        following = tl.load(place + tl.minimum(n + 1, chunks - 1) * size, here, 0.0)
        tl.store(place + n * size, state, here)
        tl.store(tops + x * chunks + n, top)
        own = tl.load(largest + x * chunks_in_all + start + n)
        higher = tl.maximum(top, own)
        reached = tl.maximum(higher, LOWEST)
        state = state * tl.exp(top - reached) + added * tl.exp(own - reached)
        top = higher + tl.load(faded + x * chunks_in_all + start + n)
        added = following
    tl.store(after + x * size + entry, state, here)
    if top_after is not None:
        tl.store(top_after + x, top)


@kernel
def pass_back(
    dstates, tops, largest, after, before, size, start, chunks, chunks_in_all, BLOCK: tl.constexpr
):
    """The gradient of every chunk's sum in the place of that of the state before it.

    ``after`` is the gradient of the state at the end, ``before`` becomes that at the beginning.
    """
    x = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = entry < size
    dstate = tl.load(after + x * size + entry, here, 0.0)
    place = dstates + x * chunks * size + entry
    added = tl.load(place + (chunks - 1) * size, here, 0.0)
    for i in range(chunks):
        n = chunks - 1 - i
        following = tl.load(place + tl.maximum(n - 1, 0) * size, here, 0.0)
        top = tl.load(tops + x * chunks + n)
        own = tl.load(largest + x * chunks_in_all + start + n)
        reached = tl.maximum(tl.maximum(top, own), LOWEST)
        tl.store(place + n * size, dstate * tl.exp(own - reached), here)
        dstate = dstate * tl.exp(top - reached) + added
        added = following
    tl.store(before + x * size + entry, dstate, here)
