"""Softmax attention under soft windows: each query's keys fade out at a distance that is learned.

    s_ij = q_i . (k_j + p_(i-j)) scale,   m_ij = clip((e_i - u_ij) / R, 0, 1),   u_ij = |i - j| - c
    A_ij = m_ij e^(s_ij) / sum_j' m_ij' e^(s_ij'),   o_i = sum_j A_ij v_j

e_i (``ends``, one a head, or one a head and query) is the distance from which on nothing is seen, R
(``ramp``) over how many keys it fades; u counts from the nearest past key (c = 1), or, both ways,
from the query (c = 0). The largest score is taken over keys with m > 0, so nothing underflows,
and m multiplies: its logarithm would have no gradient where m is 0.

Pairs lie in a band: queries in blocks of C read the keys from ``before`` in front of the first to
those of the last, n columns for each. Scores and weights of a band are C x n views of C x (C + n)
products, so no number that depends on distances is moved, and the cost is O(L n). Heads of like
reach go together (`bands`): short ones do not pay for the longest. Weights are made again in the
backward pass.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import at_once
from everyformer.engines.averages.factors import diagonals
from everyformer.engines.drawing import draw_seed
from everyformer.engines.operators import applied, operator
from everyformer.engines.ranges import full_precision, returned, widened

AT_ONCE = 1 << 20
"""scores that are made at once, 4 MB in float32: enough for the full rate of products"""


class Reach(NamedTuple):
    """Bounds of the keys that queries may read, whatever is learned."""

    window: int
    """S, the largest distance, or one more where both sides are read"""
    both: bool
    """whether a query reads its own key and later ones too, or earlier ones alone"""

    @property
    def near(self) -> int:
        """c, where u begins to count: at the nearest past key (1) or at the query (0)."""
        return 1 - self.both

    @property
    def farthest(self) -> int:
        """The largest distance of all."""
        return self.window - self.both

    @property
    def columns(self) -> int:
        """Number of distances that have a vector p."""
        return 2 * self.farthest + 1 if self.both else self.window

    def within(self, end: float) -> int:
        """The largest distance that is seen where the ramp ends at ``end``; at least the nearest
        that there is."""
        nearest = 0 if self.both else 1
        return min(max(math.ceil(end) - 1 + self.near, nearest), self.farthest)

    def part(self, table: Tensor, farthest: int) -> Tensor:
        """The rows of ``table`` (columns, D), farthest past first, for distances up to this."""
        first = self.farthest - farthest
        return table[first : len(table) - first] if self.both else table[first:]


def bands(farthest: Sequence[int]) -> list[tuple[list[int], int]]:
    """Heads by how far they see, sorted into classes of powers of two: each with its largest."""
    classes: dict[int, list[int]] = {}
    for head, far in enumerate(farthest):
        classes.setdefault(max(far, 64).bit_length(), []).append(head)
    return [(heads, max(farthest[h] for h in heads)) for _, heads in sorted(classes.items())]


def soft_windows(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, ends: Tensor, *,
    reach: Reach, ramp: float, farthest: Sequence[int], first: Tensor | None = None,
    last: Tensor | None = None, scale: float = 1.0, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Heads' outputs (B, H, L, D_v), 0 of a query that sees nothing.

    Args:
        q, k, v: (B, H, L, D), (B, H, S, D) and (B, H, S, D_v); the last query stands where the
            last key does.
        table: (columns, D), p of every distance, farthest past first.
        ends: (1, H, 1) or (B, H, L).
        farthest: the largest distance that is seen, for each head (`Reach.within`).
        first, last: (B,) the keys that are real, from ``first`` up to ``last`` (default: all).
    """
    if not torch.compiler.is_compiling():
        # of a short text there are no keys farther away
        farthest = [min(far, max(k.shape[2] - 1, 1)) for far in farthest]
    groups, heads = bands(farthest), q.shape[1]
    parts, order = [], []
    for chosen, far in groups:
        tensors = (q, k, v, ends)
        if len(chosen) < heads:
            at = torch.tensor(chosen, device=q.device)
            tensors = tuple(t.index_select(1, at) for t in tensors)  # type: ignore[assignment]
        seed = None
        if dropout:
            seed = draw_seed()
        settings = float(ramp), far, reach.near, float(scale), float(dropout)
        known = reach.part(table, far), tensors[3], first, last, seed
        parts.append(applied(_soft_band, *tensors[:3], *known, *settings)[0])
        order += chosen
    if len(parts) == 1:
        return parts[0]
    back = torch.tensor(order, device=q.device).argsort()
    return torch.cat(parts, 1).index_select(1, back)


def faded(ends: Tensor, farthest: int, near: int, ramp: float) -> Tensor:
    """log m (B or 1, H, ``farthest``) of distances down to 1; ``ends`` as in `soft_windows`."""
    u = torch.arange(farthest, 0, -1, device=ends.device) - near
    return ((ends - u) / ramp).clamp(0, 1).log()


def one_soft_window(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, fade: Tensor, scale: float
) -> Tensor:
    """`soft_windows` of one query (B, H, 1, D) that sees the past alone, without gradients: log m
    is added to its scores. ``fade``: as `faded` gives it."""
    far = min(fade.shape[2], k.shape[2] - 1)
    k, v = (t[:, :, k.shape[2] - 1 - far : -1] for t in (k, v))
    vectors = table[len(table) - far :].to(fade.dtype).mT.expand(q.shape[1], -1, -1)
    queries = q.to(fade.dtype).transpose(0, 1).squeeze(2)
    last = fade[..., fade.shape[2] - far :].transpose(0, 1)
    bias = torch.baddbmm(last, queries, vectors, alpha=scale).transpose(0, 1)[:, :, None]
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), scale=scale)


class _Band(NamedTuple):
    """Blocks of queries and keys."""

    length: int
    size: int
    """C, queries of a block"""
    columns: int
    """n, keys of a query"""
    past: int
    """keys in front of the first query's own"""
    before: int
    """distance of a query to its first key"""

    @property
    def blocks(self) -> int:
        """Number of blocks of queries, the last one filled up."""
        return -(-self.length // self.size)

    @property
    def window(self) -> int:
        """Keys that a block reads."""
        return self.size + self.columns - 1

    @property
    def keys(self) -> int:
        """Keys that all blocks read, those outside the text included."""
        return (self.blocks - 1) * self.size + self.window

    @property
    def start(self) -> int:
        """Index of the first of these."""
        return self.past - self.before


def _band(length: int, source: int, columns: int, before: int) -> _Band:
    # C near n wastes little of the products; below 32 rows they are too small to be fast
    size = min(max(32, 1 << (columns - 1).bit_length()), 128, 1 << (length - 1).bit_length())
    return _Band(length, size, columns, source - length, before)


class _Call:
    """One call, in full precision, cut into chunks of blocks."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, table: Tensor, ends: Tensor, first: Tensor | None,
        last: Tensor | None, seed: Tensor | None, ramp: float, before: int, near: int,
        scale: float, dropout: float,
    ) -> None:  # fmt: skip
        self.band = b = _band(q.shape[2], k.shape[2], len(table), before)
        self.q = _filled(widened(q) * scale, b.blocks * b.size).unflatten(2, (b.blocks, b.size))
        self.k, self.v = self._around(widened(k)), self._around(widened(v))
        self.table, self.ramp = table.to(self.q.dtype), ramp
        ends = ends.to(self.q.dtype)
        if ends.shape[2] > 1 or b.length == 1:
            ends = _filled(ends.expand(-1, -1, b.length)[..., None], b.blocks * b.size)[..., 0]
            self.ends = ends.unflatten(2, (b.blocks, b.size))[..., None]
        else:
            self.ends = ends[..., None, None]
        column = torch.arange(b.columns, device=q.device)
        self.u = ((before - column).abs() - near).to(self.q.dtype)
        self.first, self.last = first, last
        self.low = 0 if first is None else int(first.max())
        self.high = k.shape[2] if last is None else int(last.min())
        self.source, self.column = k.shape[2], column
        self.seed, self.dropout = seed, dropout

    def _around(self, t: Tensor) -> Tensor:
        """The keys or values that the blocks read, zeros outside the text."""
        b, source = self.band, t.shape[2]
        beyond = b.start + b.keys - source
        t = t[:, :, max(b.start, 0) : source + min(beyond, 0)]
        return F.pad(t, (0, 0, max(-b.start, 0), max(beyond, 0))).contiguous()

    def chunks(self) -> Iterator[slice]:
        """Blocks that are worked on at once."""
        b = self.band
        each = self.q.shape[0] * self.q.shape[1] * b.size * b.window
        count = max(1, at_once(AT_ONCE, self.q.device) // each)
        for begin in range(0, b.blocks, count):
            yield slice(begin, min(begin + count, b.blocks))

    def windows(self, t: Tensor, chunk: slice) -> Tensor:
        """View (B, H, g, C + n - 1, D) of what each block reads of keys or values."""
        return t.unfold(2, self.band.window, self.band.size)[:, :, chunk].mT

    def scores(self, chunk: slice, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, H, g, C, n), -inf where nothing is seen, and what m is before it is clipped,
        broadcastable to them."""
        q = self.q[:, :, chunk]
        scores = q @ self.table.T
        scores += diagonals(q @ keys.transpose(-1, -2), self.band.columns)
        ends = self.ends if self.ends.shape[2] == 1 else self.ends[:, :, chunk]
        slope = (ends - self.u) / self.ramp
        scores.masked_fill_(slope <= 0, -math.inf)
        hidden = self._outside(chunk)
        return scores if hidden is None else scores.masked_fill_(hidden, -math.inf), slope

    def _outside(self, chunk: slice) -> Tensor | None:
        """(B or 1, 1, g, C, n) bool, keys that are none; None: all are."""
        b, begin = self.band, self.band.start + chunk.start * self.band.size
        rows = (chunk.stop - chunk.start) * b.size
        if begin >= self.low and begin + rows + b.columns - 1 <= self.high:
            return None
        at = begin + torch.arange(rows, device=self.u.device)[:, None] + self.column
        low = 0 if self.first is None else self.first[:, None, None]
        high = self.source if self.last is None else self.last[:, None, None]
        outside = (at < low) | (at >= high)
        outside = outside if outside.dim() == 3 else outside[None]
        return outside.unflatten(1, (-1, b.size))[:, None]

    def dropped(self, chunk: slice, weights: Tensor) -> Tensor | None:
        """Factors of ``weights`` by dropout, the same at every call; None: no dropout."""
        if self.seed is None:
            return None
        draw = torch.Generator(weights.device).manual_seed(int(self.seed) + chunk.start)
        stays = torch.rand(weights.shape, generator=draw, device=weights.device) >= self.dropout
        return stays.to(weights.dtype) / (1 - self.dropout)


def _filled(t: Tensor, length: int) -> Tensor:
    """``t`` (B, H, L, D) with zeros after it, up to ``length``."""
    return F.pad(t, (0, 0, 0, length - t.shape[2]))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, ends: Tensor, first: Tensor | None,
    last: Tensor | None, seed: Tensor | None, ramp: float, before: int, near: int, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    with full_precision(q):
        call = _Call(q, k, v, table, ends, first, last, seed, ramp, before, near, scale, dropout)
        o = call.v.new_empty(*call.q.shape[:-1], v.shape[-1])
        logsum = call.q.new_empty(call.q.shape[:-1])
        for chunk in call.chunks():
            scores, slope = call.scores(chunk, call.windows(call.k, chunk))
            top = scores.amax(-1, keepdim=True)
            top.masked_fill_(top == -math.inf, 0)
            weights = scores.sub_(top).exp_().mul_(slope.clamp(0, 1))
            total = weights.sum(-1, keepdim=True)
            logsum[:, :, chunk] = (top + total.log()).squeeze(-1)
            weights /= total.masked_fill(total == 0, 1)
            factors = call.dropped(chunk, weights)
            weights = weights if factors is None else weights * factors
            wide = weights.new_zeros(*weights.shape[:-1], call.band.window)
            diagonals(wide, call.band.columns).copy_(weights)
            o[:, :, chunk] = wide @ call.windows(call.v, chunk)
        length = q.shape[2]
        o, logsum = (t.flatten(2, 3)[:, :, :length] for t in (o, logsum))
    return returned(o, v), logsum.contiguous()


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, ends: Tensor, first: Tensor | None,
    last: Tensor | None, seed: Tensor | None, o: Tensor, logsum: Tensor, grad_o: Tensor,
    ramp: float, before: int, near: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(q):
        call = _Call(q, k, v, table, ends, first, last, seed, ramp, before, near, scale, dropout)
        b, wide = call.band, call.q.dtype
        rows = b.blocks * b.size

        def blocks(t: Tensor) -> Tensor:
            return _filled(t.to(wide), rows).unflatten(2, (b.blocks, b.size))

        g = blocks(grad_o)
        # of softmax: what is taken from every weight's gradient
        level = (g * blocks(o)).sum(-1, keepdim=True)
        sums = blocks(logsum.masked_fill(logsum == -math.inf, 0)[..., None])
        dq, dk, dv = (torch.zeros_like(t) for t in (call.q, call.k, call.v))
        dtable, dends = torch.zeros_like(call.table), torch.zeros_like(call.q[..., 0])
        for chunk in call.chunks():
            keys, values = call.windows(call.k, chunk), call.windows(call.v, chunk)
            scores, slope = call.scores(chunk, keys)
            share = scores.sub_(sums[:, :, chunk]).exp_()
            weights, factors = share * slope.clamp(0, 1), call.dropped(chunk, share)
            into = weights.new_zeros(*weights.shape[:-1], b.window)
            diagonals(into, b.columns).copy_(weights if factors is None else weights * factors)
            _add(dv, into.transpose(-1, -2) @ g[:, :, chunk], chunk, b.size)
            dscores = diagonals(g[:, :, chunk] @ values.transpose(-1, -2), b.columns)
            dscores = (dscores if factors is None else dscores * factors) - level[:, :, chunk]
            # as torch's clamp has it, where the ramp begins too
            dends[:, :, chunk] = torch.where(slope <= 1, share * dscores, 0).sum(-1) / ramp
            dscores *= weights
            diagonals(into, b.columns).copy_(dscores)
            part = call.q[:, :, chunk]
            dq[:, :, chunk] = into @ keys + dscores @ call.table
            _add(dk, into.transpose(-1, -2) @ part, chunk, b.size)
            dtable += dscores.flatten(0, 3).T @ part.flatten(0, 3)
        dq = dq.flatten(2, 3)[:, :, : b.length] * scale
        dends = dends.flatten(2, 3)[:, :, : b.length].sum_to_size(ends.shape)
        dk, dv = (_back(t, like, b) for t, like in ((dk, k), (dv, v)))
    pairs = (dq, q), (dk, k), (dv, v), (dtable, table), (dends, ends)
    return tuple(returned(dscores, like) for dscores, like in pairs)  # type: ignore[return-value]


def _add(into: Tensor, windows: Tensor, chunk: slice, size: int) -> None:
    """Add what the blocks of a chunk say of the keys that they read, (B, H, g, C + n - 1, D)."""
    for n, block in enumerate(range(chunk.start, chunk.stop)):
        into[:, :, block * size : block * size + windows.shape[3]] += windows[:, :, n]


def _back(t: Tensor, like: Tensor, b: _Band) -> Tensor:
    """The adjoint of `_Call._around`: what concerns the keys ``like`` (B, H, S, D)."""
    source = like.shape[2]
    beyond = b.start + b.keys - source
    t = t[:, :, max(-b.start, 0) : t.shape[2] - max(beyond, 0)]
    return F.pad(t, (0, 0, max(b.start, 0), max(-beyond, 0)))


def _operations(q: Any, k: Any, v: Any, table: Any, before: int) -> tuple[int, int]:
    """Operations, by channel, of a product over the blocks' pairs and over those of the band."""
    b = _band(q[2], k[2], table[0], before)
    rows = 2 * q[0] * q[1] * b.blocks * b.size
    return rows * b.window, rows * b.columns


def _forward_operations(q: Any, k: Any, v: Any, table: Any, before: int) -> int:
    pairs, band = _operations(q, k, v, table, before)
    return pairs * (q[3] + v[3]) + band * q[3]


def _backward_operations(q: Any, k: Any, v: Any, table: Any, before: int) -> int:
    # scores again, then gradients of weights, values, queries, keys and of p
    pairs, band = _operations(q, k, v, table, before)
    return pairs * (3 * q[3] + 2 * v[3]) + 3 * band * q[3]


_soft_band, _ = operator(
    "soft_band",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v", "table", "ends"),
    shapes=lambda q, v: (
        v.new_empty(*q.shape[:3], v.shape[-1]),
        widened(q).new_empty(q.shape[:3]),
    ),
    flops=(_forward_operations, _backward_operations),
)
