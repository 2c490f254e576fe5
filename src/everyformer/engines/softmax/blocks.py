"""Softmax attention whose scores a position changes, a block of queries at a time.

Long calls go through blocks of queries, causal ones with the keys up to the block's last. The
weights of the first blocks, up to `SAVED`, stay for the backward pass; those of the others are
computed again there. So memory does not grow like L x S, and whatever a position computes is
differentiated by autograd, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import at_once, forked_random, random_state, set_random_state
from everyformer.core.dispatch import take
from everyformer.engines.dropout import dropout
from everyformer.engines.once import once_differentiable
from everyformer.engines.softmax.attention import ENGINE, weights_of
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import Parts, ScorePosition
from everyformer.engines.softmax.visibility import Visibility

BLOCK = 1 << 20
"""scores of a block on a CPU, 4 MB in float32: enough for the products' full rate, few enough for a
cache"""
ROWS = 64
"""queries of a block at least, below which products are slow"""
SAVED = 1 << 24
"""scores whose weights a call keeps for its backward pass on a CPU, 64 MB in float32"""


class Call(NamedTuple):
    """Position, mask and settings of an attention call, without its queries, keys and values."""

    position: ScorePosition
    pairs: Pairs
    visible: Visibility
    scale: float
    softcap: float | None
    sink: Tensor | None
    dropout: float
    """these as in `everyformer.engines.softmax.scored.Scores`"""

    def in_blocks(self, q: Tensor, k: Tensor) -> Call:
        """The call, with the distances of its blocks."""
        return self._replace(pairs=self.pairs.in_blocks(sizes(q, k)[1]))

    def prepared(self, q: Tensor) -> Parts:
        wide = torch.promote_types(q.dtype, torch.float32)
        return self.position.prepare(self.pairs, self.scale, wide)

    def block(self, rows: slice, first: int, last: int, keys: int) -> _Block:
        return _Block(rows, first, last, keys, self.pairs.block(rows, first, last, keys))


class _Block(NamedTuple):
    """Queries ``first`` to ``last`` - 1 with the first ``keys`` keys, in some rows of the batch."""

    rows: slice
    first: int
    last: int
    keys: int
    pairs: Pairs


class _Weighed(NamedTuple):
    """A block's weights as autograd sees them."""

    inputs: tuple[Tensor, ...]
    """the block's part of all tensors, from which they were computed"""
    weights: Tensor
    """(B, H, L, S)"""
    added: Tensor | None
    """addend of the outputs under them, of the position"""


def attend(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    call = call.in_blocks(q, k)
    parts, sink = call.prepared(q), call.sink
    tensors = (q, k, v, *parts) if sink is None else (q, k, v, *parts, sink)
    if sizes(q, k) == q.shape[::2]:
        take(ENGINE, "matrix", "a position changes the scores")
        whole = _weigh(call, len(parts), _whole(q, k, call), tensors)
        return _output(whole)
    take(ENGINE, "blocks of queries", "a position changes the scores")
    output: Tensor = _Blocks.apply(call, len(parts), torch.is_grad_enabled(), *tensors)
    return output


def all_scores(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Attention scores (B, H, L, S), written out; -inf: not visible."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    call = call.in_blocks(q, k)
    parts, wide = call.prepared(q), torch.promote_types(q.dtype, torch.float32)
    if sizes(q, k) == q.shape[::2]:
        whole = _whole(q, k, call)
        return _scores(call, call.position.cut(parts, whole.pairs), whole, q, k)
    scores = q.new_full((*q.shape[:3], k.shape[2]), -math.inf, dtype=wide)
    for block in _plan(q, k, call):
        cut = q[block.rows, :, block.first : block.last], k[block.rows, :, : block.keys]
        into = scores[block.rows, :, block.first : block.last, : block.keys]
        of_block = call.position.cut(parts, block.pairs)
        into.copy_(_scores(call, of_block, block, *cut))
    return scores


class _Blocks(torch.autograd.Function):
    """One block after the other; the gradient of each is autograd's."""

    @staticmethod
    def forward(ctx: Any, call: Call, count: int, graph: bool, *tensors: Tensor) -> Tensor:
        q, v = tensors[0], tensors[2]
        ctx.call, ctx.count = call, count
        ctx.save_for_backward(*tensors)
        ctx.saved, ctx.random = [], []
        room = at_once(SAVED, q.device) if graph else 0
        o = v.new_empty(*q.shape[:3], v.shape[-1])
        for block in _plan(q, tensors[1], call):
            room -= (block.last - block.first) * block.keys * q[block.rows, :, 0, 0].numel()
            ctx.random.append(random_state(q.device) if call.dropout else None)
            needed = ctx.needs_input_grad[3:] if room >= 0 else None
            weighed = _weigh(call, count, block, tensors, needed)
            o[block.rows, :, block.first : block.last] = _output(weighed)
            ctx.saved.append(weighed if room >= 0 else None)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
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


def sizes(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows of the batch and queries of a block; all of them where there is one block."""
    batch, heads, length, source = *q.shape[:3], k.shape[2]
    most = at_once(BLOCK, q.device)
    if torch.compiler.is_compiling() or batch * heads * length * source <= most:
        return batch, length
    rows = min(length, max(ROWS, most // (heads * source)))
    return min(batch, max(1, most // (heads * source * rows))), rows


def _whole(q: Tensor, k: Tensor, call: Call) -> _Block:
    return call.block(slice(None), 0, q.shape[2], k.shape[2])


def _plan(q: Tensor, k: Tensor, call: Call) -> Iterator[_Block]:
    """Blocks of about `BLOCK` scores; causal ones end with the last key that they see."""
    (batch, rows), length, source = sizes(q, k), q.shape[2], k.shape[2]
    for top in range(0, q.shape[0], batch):
        for first in range(0, length, rows):
            last = min(first + rows, length)
            keys = last + source - length if call.pairs.causal else source
            yield call.block(slice(top, top + batch), first, last, keys)


def _cut(call: Call, count: int, block: _Block, tensors: Any) -> tuple[Tensor, ...]:
    """The part that a block reads, all of it views."""
    (q, k, v), parts, sink = tensors[:3], tensors[3 : 3 + count], tensors[3 + count :]
    return (
        q[block.rows, :, block.first : block.last],
        k[block.rows, :, : block.keys],
        v[block.rows, :, : block.keys],
        *call.position.cut(parts, block.pairs),
        *sink,
    )


def _weigh(
    call: Call, count: int, block: _Block, tensors: Any, needed: tuple[bool, ...] | None = None
) -> _Weighed:
    """One block; ``needed`` says for which tensors it gets a graph of its own."""
    cut = _cut(call, count, block, tensors)
    if needed is not None:
        cut = tuple(t.detach().requires_grad_(n) for t, n in zip(cut, needed, strict=True))
    with nullcontext() if needed is None else torch.enable_grad():
        (q, k, v), parts = cut[:3], cut[3 : 3 + count]
        sink = cut[3 + count] if len(cut) > 3 + count else None
        weights = _weights(call, parts, sink, block, q, k)
        weights = dropout(weights, call.dropout) if call.dropout else weights
        weights = weights.to(v.dtype)
        added = call.position.values(weights, parts, block.pairs)
        return _Weighed(cut, weights, added)


def _output(weighed: _Weighed) -> Tensor:
    o = weighed.weights @ weighed.inputs[2]
    return o if weighed.added is None else o + weighed.added


def _weights(
    call: Call, parts: Parts, sink: Tensor | None, block: _Block, q: Tensor, k: Tensor
) -> Tensor:
    """(B, H, L, S) of one block from its parts, in float32 or wider."""
    scores = _scores(call, parts, block, q, k)
    full = sink is None and call.visible.mask is None
    return scores.softmax(-1) if full else weights_of(scores, sink)


def _scores(call: Call, parts: Parts, block: _Block, q: Tensor, k: Tensor) -> Tensor:
    """(B, H, L, S) of one block, -inf for pairs that do not see each other."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide) * call.scale, k.to(wide)
    products = (call.position.content(q, parts) @ k.transpose(-1, -2)).to(wide)
    if call.softcap is not None:
        products = call.softcap * torch.tanh(products / call.softcap)
    scores = call.position.score(products, q, k, parts, block.pairs)
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


@contextmanager
def _replayed(random: Tensor | None, q: Tensor) -> Iterator[None]:
    """With the random numbers that a block's forward pass drew."""
    if random is None:
        yield
        return
    with forked_random(q.device):
        set_random_state(random, q.device)
        yield
