"""Sums over the past of kernel attention, chunk by chunk, and their gradients.

Over chunks of C tokens, with V' the values and a last column of ones:

    Y'_i = sum_{j <= i, same chunk} P_ij e^{w_j - r_i} V'_j + e^{m - r_i} fq_i S
    S   <- e^{m - top} S + sum_j e^{w_j - top} fk_j V'_j^T,     m <- top + (sum of log g)

with P = fq fk^T, w_j the key's level less the log gates since the chunk began, m the level of the
state S, r_i the largest of m and the levels up to i, top the largest of the chunk: every exponent
is at most 0, and what stands for token i depends on nothing after it. Without levels and gates all
of them are 0. The last column of Y' is the denominator.

Chunks are worked through in segments: inside one all chunks stand side by side in batched products,
between two of them one state is carried. It alone is saved for the backward pass, which makes the
states inside a segment again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.engines.ranges import widened

CHUNK = 64
"""tokens side by side: 2 C M multiplications within a chunk against 4 M D_v for its state"""
BUDGET = 2**16
"""numbers that the states inside one segment may hold, for each head of each row: they and the
segment's tokens stay in the cache"""


def segment_length(features: int, values: int) -> int:
    """Tokens of one segment."""
    return max(1, BUDGET // (features * (values + 1))) * CHUNK


def segment_count(length: int, features: int, values: int) -> int:
    """Segments of ``length`` tokens, at least one."""
    size = segment_length(features, values)
    return (length + size - 1) // size


class Inputs(NamedTuple):
    """What is averaged, as the operators take it."""

    q: Tensor
    """(B, H, L, M) features of queries"""
    k: Tensor
    """(B, H, L, M) features of keys"""
    v: Tensor
    """(B, H, L, D_v)"""
    keep: Tensor | None
    """(B, L) bool"""
    level: Tensor | None
    """(B, H, L) log of what each key's features are multiplied by"""
    gate: Tensor | None
    """(B, H, L) log of the gates"""


class Carried(NamedTuple):
    """The state between two segments: X = B H rows."""

    sums: Tensor
    """(X, M, D_v + 1)"""
    level: Tensor | None
    """(X,); None where there are neither levels nor gates"""


class Levels(NamedTuple):
    """Factors of the equation for the n chunks of a segment, none of them above 1."""

    pairs: Tensor
    """(X n, C, C) of key j for query i; what stands above the diagonal is not used"""
    before: Tensor
    """(X n, C, 1) of the state for query i"""
    own: Tensor
    """(X n, C, 1) of key j in the chunk's sum"""
    fade: Tensor
    """(X, n, 1, 1) of the state in the next one"""


class Segment(NamedTuple):
    """One segment in chunks, float32 at least; the last chunk is filled up with zeros."""

    q: Tensor
    """(X n, C, M)"""
    k: Tensor
    """(X n, C, M)"""
    v: Tensor
    """(X n, C, D_v + 1), zero at padding"""
    states: Tensor
    """(X n, M, D_v + 1) before each chunk"""
    levels: Levels | None
    after: Carried
    """at the end"""

    def pairs(self) -> Tensor:
        """Weights (X n, C, C) of the keys of a chunk for its queries."""
        return self.weighted(torch.bmm(self.q, self.k.mT))

    def weighted(self, pairs: Tensor) -> Tensor:
        """``pairs`` times their levels, the future left out, in place."""
        return (pairs if self.levels is None else pairs.mul_(self.levels.pairs)).tril_()


def segment(given: Inputs, start: int, stop: int, before: Carried) -> Segment:
    """Tokens ``start`` to ``stop`` in chunks, with the states before each."""
    part = [None if t is None else t[..., start:stop, :] for t in given[:3]]
    q, k = (_chunked(t) for t in part[:2])
    v = _with_ones(part[2], None if given.keep is None else given.keep[:, start:stop])
    chunks = q.shape[0] // before.sums.shape[0]
    levels, level = _levels(given, start, stop, before.level, chunks)
    products = torch.bmm(k.mT, v if levels is None else v * levels.own)
    products = products.unflatten(0, (-1, chunks))
    states = torch.empty_like(products)
    held = before.sums.clone()
    for n in range(chunks):
        states[:, n] = held
        if levels is not None:
            held.mul_(levels.fade[:, n])
        held.add_(products[:, n])
    return Segment(q, k, v, states.flatten(0, 1), levels, Carried(held, level))


def forward(part: Segment) -> Tensor:
    """Y' (X n, C, D_v + 1)."""
    if part.levels is None:
        return torch.bmm(part.q, part.states).baddbmm_(part.pairs(), part.v)
    far = torch.bmm(part.q, part.states).mul_(part.levels.before)
    return far.baddbmm_(part.pairs(), part.v)


def backward(part: Segment, g: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v' and of the state before, from ``g`` (X n, C, D_v + 1) of Y'.

    ``after`` (X, M, D_v + 1) is the gradient of the state at the segment's end.
    """
    q, k, v, levels = part.q, part.k, part.v, part.levels
    rows, chunks = after.shape[0], q.shape[0] // after.shape[0]
    far = g if levels is None else g * levels.before
    ends = torch.bmm(q.mT, far).unflatten(0, (rows, chunks))
    held = after.clone()
    for n in reversed(range(chunks)):
        own, ends[:, n] = ends[:, n].clone(), held
        if levels is not None:
            held.mul_(levels.fade[:, n])
        held.add_(own)
    ends = ends.flatten(0, 1)
    weights = part.weighted(torch.bmm(g, v.mT))
    dq = torch.bmm(weights, k).baddbmm_(far, part.states.mT)
    owned = v if levels is None else v * levels.own
    dk = torch.bmm(weights.mT, q).baddbmm_(owned, ends.mT)
    dv = torch.bmm(k, ends)
    dv = dv if levels is None else dv.mul_(levels.own)
    return dq, dk, dv.baddbmm_(part.pairs().mT, g), held


def _levels(
    given: Inputs, start: int, stop: int, before: Tensor | None, chunks: int
) -> tuple[Levels | None, Tensor | None]:
    """Factors of a segment, and the level of the state at its end."""
    if before is None:
        return None, None
    rows, size = before.shape[0], chunks * CHUNK

    def chunked(t: Tensor, fill: float) -> Tensor:
        t = widened(t[..., start:stop]).reshape(rows, -1)
        return pad(t, (0, size - t.shape[1]), value=fill).unflatten(1, (chunks, CHUNK))

    like = given.level if given.gate is None else given.gate
    assert like is not None
    gate = None if given.gate is None else chunked(given.gate, 0.0).cumsum(2)
    level = chunked(torch.zeros_like(like) if given.level is None else given.level, float("-inf"))
    if given.keep is not None:
        hidden = ~given.keep[:, None].expand_as(like)
        hidden = pad(hidden[..., start:stop].reshape(rows, -1), (0, size - (stop - start)))
        level = level.masked_fill(hidden.unflatten(1, (chunks, CHUNK)), float("-inf"))
    level = level if gate is None else level - gate
    highest = level.cummax(2).values
    starts, tops, held = [], [], before
    for n in range(chunks):
        starts.append(held)
        tops.append(torch.maximum(held, highest[:, n, -1]))
        held = tops[-1] if gate is None else tops[-1] + gate[:, n, -1]
    lowest = torch.finfo(level.dtype).min
    first = torch.stack(starts, 1)
    top = torch.stack(tops, 1).clamp_(min=lowest)
    reached = torch.maximum(first[..., None], highest).clamp_(min=lowest)
    made = Levels(
        pairs=torch.sub(level[..., None, :], reached[..., None]).exp_().flatten(0, 1),
        before=torch.sub(first[..., None], reached).exp_().flatten(0, 1)[..., None],
        own=torch.sub(level, top[..., None]).exp_().flatten(0, 1)[..., None],
        fade=torch.sub(first, top).exp_()[..., None, None],
    )
    return made, held


def _chunked(t: Tensor) -> Tensor:
    """(B, H, l, c) as (B H n, C, c), filled up with zeros."""
    t, rest = widened(t), -t.shape[2] % CHUNK
    t = pad(t, (0, 0, 0, rest)) if rest else t
    return t.reshape(-1, CHUNK, t.shape[3])


def _with_ones(v: Tensor, keep: Tensor | None) -> Tensor:
    """v' of a segment in chunks."""
    batch, heads, length, values = v.shape
    chunks = -(-length // CHUNK)
    made = widened(v[..., :0]).new_zeros(batch, heads, chunks * CHUNK, values + 1)
    made[:, :, :length, :values] = v
    made[:, :, :length, values] = 1
    if keep is not None:
        made[:, :, :length].masked_fill_(~keep[:, None, :, None], 0)
    return made.view(-1, CHUNK, values + 1)
