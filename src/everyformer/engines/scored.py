"""Softmax attention whose scores depend on positions, a block of queries at a time.

    A = softmax_S(score(Q K^T * scale, i - j)),   O = A V  (+ what the position adds to values)

A position may change the queries, the scores and the outputs by the distance of every pair
(`Scorer`); the rest is softmax attention under the masks of `everyformer.engines.softmax`. Long
calls go through blocks of queries, causal ones with the keys up to the block's last, and keep no
scores for the backward pass: each block is computed again there. So nothing of size L x S is held,
and whatever a position computes is differentiated by autograd, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.engines.places import Places
from everyformer.engines.softmax import Visibility

Held = tuple[Tensor, ...]
"""what a position makes once for all blocks of a call; the first dimension of each is H or 1"""

BLOCK = 1 << 20
"""scores of a block, 4 MB in float32: enough for the products' full rate, few enough for a cache"""


class Scorer(Protocol):
    """What a position does to a block of scores; q (B, H, L, D) is already scaled."""

    def prepare(self, places: Places, scale: float, dtype: torch.dtype) -> Held:
        """What all blocks of a call share."""

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """(H,) m_h if for keys j <= i all it does is to add -m_h (i - j)."""

    def content(self, q: Tensor, held: Held) -> Tensor:
        """The queries that are compared with the keys."""

    def score(self, products: Tensor, q: Tensor, held: Held, places: Places) -> Tensor:
        """Scores (B, H, L, S) from scaled products of queries and keys."""

    def values(self, weights: Tensor, held: Held, places: Places) -> Tensor | None:
        """What is added to the heads' outputs (B, H, L, Dv) under ``weights`` (B, H, L, S)."""


@dataclass(frozen=True)
class How:
    """All that is not differentiated."""

    scorer: Scorer
    places: Places
    visible: Visibility
    scale: float
    softcap: float | None = None
    dropout: float = 0.0


class _Block(NamedTuple):
    """Queries ``first`` to ``last`` - 1 with the first ``keys`` keys."""

    first: int
    last: int
    keys: int


def scored_attention(
    q: Tensor, k: Tensor, v: Tensor, held: Held, how: How, sink: Tensor | None = None
) -> Tensor:
    """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

    Arguments beyond ``held`` are those of `everyformer.engines.softmax.softmax_attention`.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    tensors = (q, k, v, *held) if sink is None else (q, k, v, *held, sink)
    small = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= BLOCK
    if torch.compiler.is_compiling() or small:
        whole = _Block(0, q.shape[2], k.shape[2])
        return _output(how, len(held), whole, *tensors)
    return _Blocks.apply(how, len(held), *tensors)


def scored_weights(
    q: Tensor, k: Tensor, held: Held, how: How, sink: Tensor | None = None
) -> Tensor:
    """The matrix A (B, H, L, S) itself; rows that see nothing are zero."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return _weights(how, held, sink, _Block(0, q.shape[2], k.shape[2]), q, k)


class _Blocks(torch.autograd.Function):
    """Every block forward without a graph, and again with one when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, how: How, count: int, *tensors: Tensor) -> Tensor:
        q, v = tensors[0], tensors[2]
        ctx.how, ctx.count = how, count
        ctx.save_for_backward(*tensors)
        if how.dropout:
            ctx.random = torch.random.get_rng_state()
        o = v.new_empty(*q.shape[:3], v.shape[-1])
        for block in _plan(q, tensors[1], how):
            cut = _cut(block, tensors)
            o[:, :, block.first : block.last] = _output(how, count, block, *cut)
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        how: How = ctx.how
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        sums = [torch.zeros_like(t) if n else None for t, n in zip(tensors, needed, strict=True)]

        def blocks() -> None:
            for block in _plan(tensors[0], tensors[1], how):
                with torch.enable_grad():
                    cut = tuple(
                        t.detach().requires_grad_(n)
                        for t, n in zip(_cut(block, tensors), needed, strict=True)
                    )
                    o = _output(how, ctx.count, block, *cut)
                asked = [t for t in cut if t.requires_grad]
                above = grad[:, :, block.first : block.last]
                found = iter(torch.autograd.grad(o, asked, above, allow_unused=True))
                for total, n in zip(_cut(block, sums), needed, strict=True):
                    part = next(found) if n else None
                    if part is not None:
                        total.add_(part)

        _replayed(blocks, getattr(ctx, "random", None))
        return None, None, *sums


def _replayed(work: Callable[[], None], random: Tensor | None) -> None:
    """With the random numbers that the forward pass drew."""
    if random is None:
        work()
        return
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(random)
        work()


def _plan(q: Tensor, k: Tensor, how: How) -> Iterator[_Block]:
    """Blocks of at most `BLOCK` scores; causal ones end with the last key that they see."""
    batch, heads, length, source = *q.shape[:3], k.shape[2]
    rows = max(1, BLOCK // (batch * heads * source))
    ahead = source - length
    for first in range(0, length, rows):
        last = min(first + rows, length)
        yield _Block(first, last, last + ahead if how.visible.causal else source)


def _cut(block: _Block, tensors: Any) -> tuple[Any, ...]:
    """The part of q, k and v that a block reads; all of the rest."""
    q, k, v, *rest = tensors
    return (
        q if q is None else q[:, :, block.first : block.last],
        k if k is None else k[:, :, : block.keys],
        v if v is None else v[:, :, : block.keys],
        *rest,
    )


def _output(
    how: How, count: int, block: _Block, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor
) -> Tensor:
    """Heads' outputs of one block; ``rest`` is what the position holds, then maybe the sink."""
    held, sink = rest[:count], rest[count] if len(rest) > count else None
    weights = _weights(how, held, sink, block, q, k)
    weights = F.dropout(weights, how.dropout).to(v.dtype) if how.dropout else weights.to(v.dtype)
    o = weights @ v
    places = how.places.block(*block)
    added = how.scorer.values(weights, held, places)
    return o if added is None else o + added


def _weights(
    how: How, held: Held, sink: Tensor | None, block: _Block, q: Tensor, k: Tensor
) -> Tensor:
    """(B, H, L, S) of one block, in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q = q.to(wide) * how.scale
    places = how.places.block(*block)
    products = (how.scorer.content(q, held) @ k.to(wide).transpose(-1, -2)).to(wide)
    if how.softcap is not None:
        products = how.softcap * torch.tanh(products / how.softcap)
    scores = how.scorer.score(products, q, held, places)
    visible, full = how.visible, False
    if visible.causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(later.triu(k.shape[2] - q.shape[2] + 1), -math.inf)
        full = True
    elif visible.mask is not None:
        mask = visible.mask
        mask = mask if mask.shape[-2] == 1 else mask[..., block.first : block.last, :]
        hides = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if hides else scores + mask
    else:
        full = True
    if sink is not None:
        column = sink.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    if full:
        return scores.softmax(-1)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
