"""Softmax attention whose scores depend on positions, a block of queries at a time.

    A = softmax_S(score(Q K^T * scale, i - j)),   O = A V  (+ what the position adds to values)

A position may change the queries, the scores and the outputs by the distance of every pair
(`PositionOnScores`); the rest is softmax attention under the same masks as a plain call's. Long
calls go through blocks of queries, causal ones with the keys up to the block's last. The weights of
the first blocks, up to `KEPT`, stay for the backward pass; those of the others are computed again
there. So memory does not grow like L x S, and whatever a position computes is differentiated
by autograd, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.engines.dropout import dropout
from everyformer.engines.once import once_differentiable
from everyformer.engines.rooms import at_once
from everyformer.engines.softmax.attention import (
    ENGINE,
    attention_scores,
    sloped,
    softmax_attention,
    weights_of,
)
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.visibility import Visibility

Parts = tuple[Tensor, ...]
"""what a position makes once for all blocks of a call; the first dimension of each is H or 1"""

BLOCK = 1 << 20
"""scores of a block on a CPU, 4 MB in float32: enough for the products' full rate, few enough for a
cache"""
ROWS = 64
"""queries of a block at least, below which products are slow"""
SAVED = 1 << 24
"""scores whose weights a call keeps for its backward pass on a CPU, 64 MB in float32"""


class PositionOnScores(Protocol):
    """Change of a block of scores by a position; q (B, H, L, D) is already scaled."""

    additive: bool
    adds_to_values: ClassVar[bool]

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Addends (H, ...) of pairs ``distance`` (...) apart; if ``additive``, all that it does."""

    def of_heads(self, chosen: Sequence[int]) -> PositionOnScores:
        """The change for some heads, counted from 0."""

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        """Tensors that all blocks of a call share."""

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """(H,) m_h if for keys j <= i all it does is to add -m_h (i - j)."""

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        """A block's part of what the call holds, all of it views."""

    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor] | None:
        """For one query, not scaled, at the last key: what is compared with the keys, and addends
        (B or 1, H, 1, S) of the scaled scores; None where that does not say all."""

    def content(self, q: Tensor, parts: Parts) -> Tensor:
        """The queries that are compared with the keys."""

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        """Scores (B, H, L, S) from scaled products of queries and keys, which it may overwrite."""

    def values(self, weights: Tensor, parts: Parts, pairs: Pairs) -> Tensor | None:
        """Addends of the heads' outputs (B, H, L, Dv) under ``weights`` (B, H, L, S)."""


@dataclass(frozen=True)
class Scores:
    """Rules by which a mixer makes scores, and weights of them, whatever the call."""

    scale: float | None = None
    """factor on the products (default: 1/sqrt(D))"""
    softcap: float | None = None
    sink: Tensor | None = None
    """(H,)"""
    position: PositionOnScores | None = None
    dropout: float = 0.0
    """on the weights"""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

        Without ``pairs`` nothing depends on order.
        """
        single = self._single(q, visible, pairs)
        if single is not None:
            assert pairs is not None
            if self.position is not None and self.position.adds_to_values:
                return self._with_values(*single, k, v, pairs)
            q, visible = single
            return softmax_attention(q, k, v, visible, scale=self.scale, dropout=self.dropout)
        slopes, call = self._settled(q, k, visible, pairs, self.dropout)
        if call is None:
            return softmax_attention(
                q, k, v, visible, scale=self.scale, dropout=self.dropout,
                softcap=self.softcap, sink=self.sink, slopes=slopes,
            )  # fmt: skip
        return _attend(q, k, v, call)

    def weights(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """The matrix A (B, H, L, S) itself; rows that see nothing are zero."""
        return weights_of(self._all(q, k, visible, pairs), self.sink)

    def log_sums(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """Logarithms (B, H, L) of the denominators of A, -inf where nothing is seen."""
        scores = self._all(q, k, visible, pairs)
        empty = (scores == -math.inf).all(-1)
        sums = scores.masked_fill(empty[..., None], 0.0).logsumexp(-1)
        sums = sums.masked_fill(empty, -math.inf)
        return sums if self.sink is None else sums.logaddexp(self.sink.to(sums)[None, :, None])

    def _all(self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None) -> Tensor:
        """All scores (B, H, L, S), written out; -inf: not visible."""
        slopes, call = self._settled(q, k, visible, pairs, 0.0)
        if call is None:
            return attention_scores(
                q, k, visible, scale=self.scale, softcap=self.softcap, slopes=slopes
            )
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        parts, wide = call.prepared(q), torch.promote_types(q.dtype, torch.float32)
        if _sizes(q, k) == q.shape[::2]:
            return _scores(call, call.cut(parts, _whole(q, k)), _whole(q, k), q, k)
        scores = q.new_full((*q.shape[:3], k.shape[2]), -math.inf, dtype=wide)
        for block in _plan(q, k, call):
            cut = q[block.rows, :, block.first : block.last], k[block.rows, :, : block.keys]
            into = scores[block.rows, :, block.first : block.last, : block.keys]
            into.copy_(_scores(call, call.cut(parts, block), block, *cut))
        return scores

    def _settled(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None, dropout: float
    ) -> tuple[Tensor | None, _Call | None]:
        """The slopes of plain softmax, or the call in blocks where that does not do."""
        if self.position is None or pairs is None:
            return None, None
        # indices tell distances, no later key is seen, and no other bias is in the way
        bare = visible.mask is None or visible.mask.dtype == torch.bool
        wide = torch.promote_types(q.dtype, torch.float32)
        if pairs.causal and pairs.regular and bare:
            slopes = self.position.slopes_of(wide, q.device)
            if slopes is not None and sloped(q, k, visible, slopes, dropout) != "written":
                return slopes, None
        pairs = pairs.in_blocks(_sizes(q, k)[1])
        return None, _Call(self.position, pairs, visible, self)

    def _single(
        self, q: Tensor, visible: Visibility, pairs: Pairs | None
    ) -> tuple[Tensor, Visibility] | None:
        """One query that continues a stream, as a plain call with a bias has it; or None."""
        position = self.position
        if position is None or pairs is None or self.softcap is not None or self.sink is not None:
            return None
        hidden = visible.mask
        if q.shape[2] > 1 or not pairs.last:
            return None
        if hidden is not None and (hidden.dtype != torch.bool or position.adds_to_values):
            return None
        changed = position.last(q, pairs, self.factor(q))
        if changed is None:
            return None
        q, bias = changed
        return q, Visibility(mask=bias if hidden is None else bias.masked_fill(~hidden, -math.inf))

    def _with_values(
        self, q: Tensor, visible: Visibility, k: Tensor, v: Tensor, pairs: Pairs
    ) -> Tensor:
        """Outputs of one query with a bias, and with what the position adds to them."""
        take(ENGINE, "one query", "a position adds to values")
        assert self.position is not None
        assert visible.mask is not None
        groups, wide = q.shape[1] // k.shape[1], visible.mask.dtype
        k, v = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (k, v))
        heads = q.shape[:2]
        bias, q, k, v = (t.flatten(0, 1) for t in (visible.mask.expand(*heads, 1, -1), q, k, v))
        scores = torch.baddbmm(bias, q.to(wide), k.to(wide).mT, alpha=self.factor(q))
        weights = dropout(scores.softmax(-1), self.dropout) if self.dropout else scores.softmax(-1)
        weights = weights.to(v.dtype)
        parts = self.position.cut(self.position.prepare(pairs, self.factor(q), wide), pairs)
        added = self.position.values(weights.unflatten(0, heads), parts, pairs)
        o = weights @ v if added is None else torch.baddbmm(added.flatten(0, 1), weights, v)
        return o.unflatten(0, heads)

    def factor(self, q: Tensor) -> float:
        """The scale of queries (..., D)."""
        return 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale


class _Call(NamedTuple):
    """Settings of a call in blocks, without its queries, keys and values."""

    position: PositionOnScores
    pairs: Pairs
    """of the blocks"""
    visible: Visibility
    scores: Scores

    def prepared(self, q: Tensor) -> Parts:
        wide = torch.promote_types(q.dtype, torch.float32)
        return self.position.prepare(self.pairs, self.scores.factor(q), wide)

    def cut(self, parts: Parts, block: _Block) -> Parts:
        return self.position.cut(parts, self.pairs.block(*block))


class _Block(NamedTuple):
    """Queries ``first`` to ``last`` - 1 with the first ``keys`` keys, in some rows of the batch."""

    rows: slice
    first: int
    last: int
    keys: int


class _Weighed(NamedTuple):
    """A block's weights as autograd sees them."""

    inputs: tuple[Tensor, ...]
    """what they were computed from: the block's part of all tensors"""
    weights: Tensor
    """(B, H, L, S)"""
    added: Tensor | None
    """what the position adds to outputs under them"""


def _attend(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    parts, sink = call.prepared(q), call.scores.sink
    tensors = (q, k, v, *parts) if sink is None else (q, k, v, *parts, sink)
    if _sizes(q, k) == q.shape[::2]:
        take(ENGINE, "matrix", "a position changes the scores")
        whole = _weigh(call, len(parts), _whole(q, k), tensors)
        return _output(whole)
    take(ENGINE, "blocks of queries", "a position changes the scores")
    output: Tensor = _Blocks.apply(call, len(parts), torch.is_grad_enabled(), *tensors)
    return output


class _Blocks(torch.autograd.Function):
    """One block after the other; the gradient of each is autograd's."""

    @staticmethod
    def forward(ctx: Any, call: _Call, count: int, graph: bool, *tensors: Tensor) -> Tensor:
        q, v = tensors[0], tensors[2]
        ctx.call, ctx.count = call, count
        ctx.save_for_backward(*tensors)
        ctx.saved, ctx.random = [], []
        room = at_once(SAVED, q.device) if graph else 0
        o = v.new_empty(*q.shape[:3], v.shape[-1])
        for block in _plan(q, tensors[1], call):
            room -= (block.last - block.first) * block.keys * q[block.rows, :, 0, 0].numel()
            ctx.random.append(_random_state(q) if call.scores.dropout else None)
            needed = ctx.needs_input_grad[3:] if room >= 0 else None
            weighed = _weigh(call, count, block, tensors, needed)
            o[block.rows, :, block.first : block.last] = _output(weighed)
            ctx.saved.append(weighed if room >= 0 else None)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        sums = [torch.zeros_like(t) if n else t for t, n in zip(tensors, needed, strict=True)]
        for n, block in enumerate(_plan(tensors[0], tensors[1], call)):
            # its graph serves once; a second backward pass makes it again
            weighed, ctx.saved[n] = ctx.saved[n], None
            if weighed is None:
                with _replayed(ctx.random[n], tensors[0]):
                    weighed = _weigh(call, ctx.count, block, tensors, needed)
            above = grad[block.rows, :, block.first : block.last]
            parts = _gradients(weighed, above, needed)
            for total, part in zip(_cut(call, ctx.count, block, sums), parts, strict=True):
                if part is not None:
                    total.add_(part)
        return None, None, None, *(s if n else None for s, n in zip(sums, needed, strict=True))


def _gradients(
    weighed: _Weighed, above: Tensor, needed: tuple[bool, ...]
) -> Iterator[Tensor | None]:
    """Gradients of a block's inputs, where they are needed."""
    v, weights, added = weighed.inputs[2].detach(), weighed.weights, weighed.added
    results, gradients = [], []
    if weights.requires_grad:
        results, gradients = [weights], [above @ v.transpose(-1, -2)]
    if added is not None and added.requires_grad:
        results, gradients = [*results, added], [*gradients, above]
    inputs = [t for n, t in enumerate(weighed.inputs) if needed[n] and n != 2]
    grads: Iterator[Tensor | None] = iter(())
    if inputs:
        grads = iter(torch.autograd.grad(results, inputs, gradients, allow_unused=True))
    for n, need in enumerate(needed):
        if n == 2:
            yield weights.detach().transpose(-1, -2) @ above if need else None
        else:
            yield next(grads, None) if need else None


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows of the batch and queries of a block; all of them where there is one block."""
    batch, heads, length, source = *q.shape[:3], k.shape[2]
    most = at_once(BLOCK, q.device)
    if torch.compiler.is_compiling() or batch * heads * length * source <= most:
        return batch, length
    rows = min(length, max(ROWS, most // (heads * source)))
    return min(batch, max(1, most // (heads * source * rows))), rows


def _whole(q: Tensor, k: Tensor) -> _Block:
    return _Block(slice(None), 0, q.shape[2], k.shape[2])


def _plan(q: Tensor, k: Tensor, call: _Call) -> Iterator[_Block]:
    """Blocks of about `BLOCK` scores; causal ones end with the last key that they see."""
    (batch, rows), length, source = _sizes(q, k), q.shape[2], k.shape[2]
    for top in range(0, q.shape[0], batch):
        for first in range(0, length, rows):
            last = min(first + rows, length)
            keys = last + source - length if call.pairs.causal else source
            yield _Block(slice(top, top + batch), first, last, keys)


def _cut(call: _Call, count: int, block: _Block, tensors: Any) -> tuple[Tensor, ...]:
    """The part that a block reads, all of it views."""
    (q, k, v), parts, sink = tensors[:3], tensors[3 : 3 + count], tensors[3 + count :]
    return (
        q[block.rows, :, block.first : block.last],
        k[block.rows, :, : block.keys],
        v[block.rows, :, : block.keys],
        *call.cut(parts, block),
        *sink,
    )


def _weigh(
    call: _Call, count: int, block: _Block, tensors: Any, needed: tuple[bool, ...] | None = None
) -> _Weighed:
    """One block; ``needed`` says for which tensors it gets a graph of its own."""
    cut = _cut(call, count, block, tensors)
    if needed is not None:
        cut = tuple(t.detach().requires_grad_(n) for t, n in zip(cut, needed, strict=True))
    with nullcontext() if needed is None else torch.enable_grad():
        (q, k, v), parts = cut[:3], cut[3 : 3 + count]
        sink = cut[3 + count] if len(cut) > 3 + count else None
        weights = _weights(call, parts, sink, block, q, k)
        weights = dropout(weights, call.scores.dropout) if call.scores.dropout else weights
        weights = weights.to(v.dtype)
        added = call.position.values(weights, parts, call.pairs.block(*block))
        return _Weighed(cut, weights, added)


def _output(weighed: _Weighed) -> Tensor:
    o = weighed.weights @ weighed.inputs[2]
    return o if weighed.added is None else o + weighed.added


def _weights(
    call: _Call, parts: Parts, sink: Tensor | None, block: _Block, q: Tensor, k: Tensor
) -> Tensor:
    """(B, H, L, S) of one block from its parts, in float32 or wider."""
    scores = _scores(call, parts, block, q, k)
    full = sink is None and call.visible.mask is None
    return scores.softmax(-1) if full else weights_of(scores, sink)


def _scores(call: _Call, parts: Parts, block: _Block, q: Tensor, k: Tensor) -> Tensor:
    """(B, H, L, S) of one block, -inf for pairs that do not see each other."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, pairs = q.to(wide) * call.scores.factor(q), k.to(wide), call.pairs.block(*block)
    products = (call.position.content(q, parts) @ k.transpose(-1, -2)).to(wide)
    if call.scores.softcap is not None:
        products = call.scores.softcap * torch.tanh(products / call.scores.softcap)
    scores = call.position.score(products, q, k, parts, pairs)
    if call.visible.causal:
        return _hide_later(scores)
    if call.visible.mask is not None:
        mask = call.visible.mask
        mask = mask[block.rows] if mask.dim() == 4 and mask.shape[0] > 1 else mask
        mask = mask if mask.shape[-2] == 1 else mask[..., block.first : block.last, :]
        mask = mask if mask.shape[-1] == 1 else mask[..., : block.keys]
        hidden = mask.dtype == torch.bool
        return scores.masked_fill(~mask, -math.inf) if hidden else scores + mask
    return scores


def _hide_later(scores: Tensor) -> Tensor:
    """Queries that end with the keys see none later than themselves."""
    length, source = scores.shape[-2:]
    if length == 1:
        return scores
    later = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
    if torch.compiler.is_compiling():
        return scores.masked_fill(F.pad(later, (source - length, 0)), -math.inf)
    # softmax gives the hidden ones a gradient of zero, so autograd need not know
    with torch.no_grad():
        scores[..., source - length :].masked_fill_(later, -math.inf)
    return scores


def _random_state(q: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(q.device) if q.is_cuda else torch.get_rng_state()


@contextmanager
def _replayed(random: Tensor | None, q: Tensor) -> Iterator[None]:
    """With the random numbers that a block's forward pass drew."""
    if random is None:
        yield
        return
    with torch.random.fork_rng(devices=[q.device] if q.is_cuda else []):
        if q.is_cuda:
            torch.cuda.set_rng_state(random, q.device)
        else:
            torch.set_rng_state(random)
        yield
