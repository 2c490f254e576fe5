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

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.core.devices import CPU, at_once
from everyformer.engines.kernel.maps import Mapped, SegmentMap, mapped, unmapped
from everyformer.engines.products import add_product, halves, product
from everyformer.engines.ranges import widened

CHUNK = 64
"""C at most, tokens side by side: 2 C M multiplications within a chunk against 4 M D_v for its
state"""
STEP = 8
"""of the tokens of a segment that has fewer, which is one chunk"""
BUDGET = 2**16
"""numbers that the states inside one segment may hold on a CPU, for each head of each row: they and
the segment's tokens stay in the cache"""


def segment_length(features: int, values: int, device: torch.device = CPU) -> int:
    """Tokens of one segment."""
    return max(1, at_once(BUDGET, device) // (features * (values + 1))) * CHUNK


def segment_count(length: int, features: int, values: int, device: torch.device = CPU) -> int:
    """Segments of ``length`` tokens, at least one."""
    size = segment_length(features, values, device)
    return (length + size - 1) // size


def chunk_length(length: int) -> int:
    """C of a segment of ``length`` tokens."""
    return CHUNK if length > CHUNK - STEP else -(-length // STEP) * STEP


class Inputs(NamedTuple):
    """Features, values and gates of an average, as the operators take them."""

    q: Tensor
    """(B, H, L, M) features of queries, or (B, H, L, D) what is mapped to them"""
    k: Tensor
    """the same of keys"""
    v: Tensor
    """(B, H, L, D_v)"""
    padding_mask: Tensor | None
    """(B, L) bool"""
    level: Tensor | None
    """(B, H, L) log of what each key's features are multiplied by"""
    gate: Tensor | None
    """(B, H, L) log of the gates"""
    map: SegmentMap | None = None
    """of queries and keys; None: they are features already"""

    def segment(self, start: int, stop: int) -> "Inputs":
        """Tokens ``start`` to ``stop``."""
        at = slice(start, stop)
        return self._replace(
            q=self.q[:, :, at],
            k=self.k[:, :, at],
            v=self.v[:, :, at],
            padding_mask=None if self.padding_mask is None else self.padding_mask[:, at],
            level=None if self.level is None else self.level[:, :, at],
            gate=None if self.gate is None else self.gate[:, :, at],
        )


class Carried(NamedTuple):
    """The state between two segments: X = B H rows."""

    sums: Tensor
    """(X, M, D_v + 1)"""
    level: Tensor | None
    """(X,); None where there are neither levels nor gates"""


class Levels(NamedTuple):
    """Factors of the equation for the n chunks of a segment, none of them above 1."""

    pairs: Tensor
    """(X n, C, C) of key j for query i; entries above the diagonal are not used"""
    before: Tensor
    """(X n, C, 1) of the state for query i"""
    own: Tensor
    """(X n, C, 1) of key j in its chunk's sum"""


class Chunked(NamedTuple):
    """Segment in chunks; the last chunk is filled up with zeros."""

    q: Tensor
    """(X n, C, M)"""
    k: Tensor
    """(X n, C, M)"""
    v: Tensor
    """(X n, C, D_v + 1), zero at padding"""
    states: Tensor
    """(X n, M, D_v + 1) before each chunk"""
    fades: Tensor
    """(X, n + 1, n + 1) of the state before the segment and of each chunk's sum (columns), in the
    states before each chunk and at the end (rows)"""
    levels: Levels | None
    after: Carried
    """at the end"""
    half: bool
    """whether products are of bfloat16; states, weights by level and sums are float32"""
    mapped: tuple[SegmentMap, Mapped, Mapped] | None
    """a map, and the queries and keys before and after it"""

    def pairs(self) -> Tensor:
        """Weights (X n, C, C) of the keys of a chunk for its queries."""
        return self.weighted(product(self.q, self.k.mT, self.half))

    def weighted(self, pairs: Tensor) -> Tensor:
        """``pairs`` times their levels, the future left out, in place."""
        return (pairs if self.levels is None else pairs.mul_(self.levels.pairs)).tril_()


def chunk_segment(part: Inputs, before: Carried) -> Chunked:
    """The tokens of a segment in chunks, with the states before each."""
    # a gate's gradient is what is left of a sum over all later tokens, where digits are lost
    plain = part.map is None or part.map.rows is None
    half = halves(part.v) and part.gate is None and plain
    size = chunk_length(part.v.shape[2])
    q, k = (_filled(t, size, half) for t in (part.q, part.k))
    v = _with_ones(part.v, size, part.padding_mask)
    rows = before.sums.shape[0]
    chunks, both = q.shape[2] // size, None
    if part.map is not None:
        of_q, of_k = (mapped(widened(t), part.map) for t in (q, k))
        q, k, both = of_q.features, of_k.features, (part.map, of_q, of_k)
        if of_k.level is not None:
            own = of_k.level[:, :, : part.v.shape[2]]
            part = part._replace(level=own if part.level is None else own + part.level)
    q, k = (t.reshape(-1, size, t.shape[3]) for t in (q, k))
    levels, fades, level = _levels(part, before.level, chunks, size)
    if fades is None:
        fades = v.new_ones(chunks + 1, chunks + 1).tril_().expand(rows, -1, -1)
    sums = product(k.mT, _owned(v, levels), half).view(rows, chunks, -1)
    states = torch.bmm(fades[:, :, 1:], sums)
    states.addcmul_(fades[:, :, :1], before.sums.reshape(rows, 1, -1))
    states = states.unflatten(2, before.sums.shape[1:])
    after = Carried(states[:, -1].clone(), level)
    return Chunked(q, k, v, states[:, :-1].flatten(0, 1), fades, levels, after, half, both)


def forward(part: Chunked) -> Tensor:
    """Y' (X n, C, D_v + 1)."""
    far = product(part.q, part.states, part.half)
    if part.levels is not None:
        far.mul_(part.levels.before)
    return add_product(far, part.pairs(), part.v, part.half)


def backward(part: Chunked, g: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v' and of the state before, from ``g`` (X n, C, D_v + 1) of Y'.

    ``after`` (X, M, D_v + 1) is the gradient of the state at the segment's end.
    """
    q, k, levels, fades, half = part.q, part.k, part.levels, part.fades, part.half
    rows, chunks = after.shape[0], fades.shape[1] - 1
    far = g if levels is None else g * levels.before
    states = product(q.mT, far, half).view(rows, chunks, -1)
    ends, flat = fades[:, -1:].mT, after.reshape(rows, 1, -1)
    before = torch.bmm(fades[:, :-1, :1].mT, states).addcmul_(ends[:, :1], flat)
    sums = torch.bmm(fades[:, :-1, 1:].mT, states).addcmul_(ends[:, 1:], flat)
    sums = sums.view(-1, *after.shape[1:])
    weights = part.weighted(product(g, part.v.mT, half))
    dq = add_product(product(weights, k, half), far, part.states.mT, half)
    dk = add_product(product(weights.mT, q, half), _owned(part.v, levels), sums.mT, half)
    dv = product(k, sums, half)
    dv = dv if levels is None else dv.mul_(levels.own)
    return dq, dk, add_product(dv, part.pairs().mT, g, half), before.view_as(after)


def before_map(
    part: Chunked, dq: Tensor, dk: Tensor, of_level: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of what a map has made queries and keys of, from theirs and that of levels."""
    if part.mapped is None:
        return dq, dk
    by, of_q, of_k = part.mapped
    level = None if of_level is None or of_k.level is None else of_level.view_as(of_k.level)
    dq = unmapped(of_q, by, dq.view_as(of_q.features), None)
    dk = unmapped(of_k, by, dk.view_as(of_k.features), level)
    size = part.q.shape[1]
    return dq.view(-1, size, dq.shape[3]), dk.view(-1, size, dk.shape[3])


def _owned(v: Tensor, levels: Levels | None) -> Tensor:
    """V' as each chunk's own sum takes it."""
    return v if levels is None else v * levels.own


def _levels(
    part: Inputs, before: Tensor | None, chunks: int, size: int
) -> tuple[Levels | None, Tensor | None, Tensor | None]:
    """Factors of a segment, those of its states, and the level of the state at its end.

    Levels are written less the sum of the log gates since the segment began, so that the level of
    the state before chunk n is the running maximum over the chunks before it.
    """
    if before is None:
        return None, None, None
    rows, lowest = before.shape[0], float("-inf")

    def chunked(t: Tensor, fill: float) -> Tensor:
        t = t.reshape(rows, -1)
        rest = chunks * size - t.shape[1]
        return pad(t, (0, rest), value=fill).unflatten(1, (chunks, size))

    like = part.level if part.gate is None else part.gate
    assert like is not None
    level = chunked(widened(torch.zeros_like(like) if part.level is None else part.level), lowest)
    if part.padding_mask is not None:
        real = chunked(part.padding_mask[:, None].expand(like.shape), False)
        level = level.masked_fill(~real, lowest)
    total = level.new_zeros(rows, chunks + 1)
    if part.gate is not None:
        # summed up within a chunk, so that no digits are lost to what happened long before
        gate = chunked(widened(part.gate), 0.0).cumsum(2)
        level = level - gate
        total[:, 1:] = gate[:, :, -1].cumsum(1)
    highest = level.cummax(2).values
    tops = torch.cat([before[:, None], highest[:, :, -1] - total[:, :-1]], 1).cummax(1).values
    first = (tops + total)[:, :-1, None]
    ends = (tops[:, 1:] + total[:, :-1])[:, :, None]
    finite = torch.finfo(level.dtype).min
    reached = torch.maximum(first, highest).clamp_(min=finite)
    levels = Levels(
        pairs=torch.sub(level[..., None, :], reached[..., None]).exp_().flatten(0, 1),
        before=torch.sub(first, reached).exp_().flatten(0, 1)[..., None],
        own=torch.sub(level, ends.clamp(min=finite)).exp_().flatten(0, 1)[..., None],
    )
    fades = torch.sub(tops[:, None], tops[..., None].clamp(min=finite)).exp_().tril_()
    return levels, fades, tops[:, -1] + total[:, -1]


def _filled(t: Tensor, size: int, half: bool) -> Tensor:
    """(B, H, l, c), filled up with zeros to whole chunks; of products in bfloat16 as it is."""
    t, rest = t if half else widened(t), -t.shape[2] % size
    return pad(t, (0, 0, 0, rest)) if rest else t


def _with_ones(v: Tensor, size: int, padding_mask: Tensor | None) -> Tensor:
    """v' of a segment in chunks."""
    batch, heads, length, values = v.shape
    chunks = -(-length // size)
    out = widened(v[..., :0]).new_zeros(batch, heads, chunks * size, values + 1)
    out[:, :, :length, :values] = v
    out[:, :, :length, values] = 1
    if padding_mask is not None:
        out[:, :, :length].masked_fill_(~padding_mask[:, None, :, None], 0)
    return out.view(-1, size, values + 1)
