"""Softmax attention among the tokens of a cluster: the latest, the best so far, or the best of all.

`latest`     token t sees the last w tokens of its own cluster, itself included
`best_yet`   token t is in every cluster of which it is among the w best tokens up to t, and sees
             those; what it gets is the mean over its clusters
`balanced`   the same with the w best tokens of the whole row (of queries, and of keys)

The first two have a state of constant size: the last w - 1 tokens of every cluster
(`everyformer.engines.content.recent`), or the w best (`Members`). A token that is in no cluster
gets 0.

Letters: B batch, H heads, L tokens, K clusters, w window, D channels. Scores are multiplied by
1/sqrt(D).
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.choices import choose
from everyformer.core.dispatch import take
from everyformer.core.leaving import leaves_torch
from everyformer.core.state import State, state
from everyformer.engines.content.hashing import bucket_order
from everyformer.engines.once import named_once
from everyformer.engines.softmax import kernels
from everyformer.engines.softmax.visibility import in_even_rows

_CHUNK = 32
"""queries that are worked on together, at least"""
_PIECE = 64
"""tokens that `best_yet` takes in at a time, at least"""


@state
class Members(State):
    """The best members of every cluster, the earliest first."""

    num_tokens: Tensor
    keys: Tensor
    """(B, H, K, W, D)"""
    values: Tensor
    """(B, H, K, W, D)"""
    scores: Tensor = field(metadata={"empty": -math.inf})
    """(B, H, K, W) of the members with their centroid; -inf: none"""

    @classmethod
    def empty(cls, rows: tuple[int, int, int], size: int, **like: Any) -> Members:
        """Clusters without members, for ``rows`` = (batch, heads, clusters)."""
        none = torch.zeros(*rows, 0, size, **like)
        seen = torch.zeros(rows[0], dtype=torch.long, device=like.get("device"))
        return cls(seen, none, none, torch.zeros(*rows, 0, device=like.get("device")))


class HeadInputs(NamedTuple):
    """Queries, keys and values (B, H, L, D) of the same tokens."""

    q: Tensor
    k: Tensor
    v: Tensor


def latest(
    heads: HeadInputs, labels: Tensor | None, window: int, clusters: int, *,
    both: bool = False, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention to the last ``window`` tokens of the same label: (B, H, L, D).

    Tokens are put in the order of their labels, cut into chunks of w, and a chunk sees itself and
    the one before it: O(L w D).

    Args:
        labels: (B, H, L) below ``clusters``; ``clusters`` is padding. None: all are alike.
        both: see those ahead too, fewer than ``window`` away.
    """
    length, alike = heads.q.shape[2], labels is None
    if labels is None:
        labels = torch.zeros(1, 1, length, dtype=torch.long, device=heads.q.device)
    if leaves_torch():
        take("routing", "dense", "tokens are not put in order in an exported program", True)
        return _latest_dense(heads, labels, window, clusters, both)
    # a window longer than the row shows all of it; a graph has to serve longer rows too
    reach = window if torch.compiler.is_compiling() else min(window, length)
    chunk = max(reach, _CHUNK)
    more = -length % chunk
    labels = F.pad(labels.flatten(0, 1), (0, more), value=clusters)
    q, k, v = (F.pad(t.flatten(0, 1), (0, 0, 0, more)) for t in heads)
    places = None
    if not alike:
        order = bucket_order(labels)
        places = order, _inverse(order)
        q, k, v = (in_order(t, *places) for t in (q, k, v))
        labels = labels.gather(1, order)
    q, k, v, labels = (t.unflatten(1, (-1, chunk)) for t in (q, k, v, labels))
    around = 3 if both else 2
    ahead = torch.arange(around * chunk, device=q.device) - chunk
    lag = torch.arange(chunk, device=q.device)[:, None] - ahead
    near = lag.abs() < window if both else (lag >= 0) & (lag < window)
    mask = (labels[..., None] == _windows(labels, around, -1)[:, :, None]) & near
    k, v = _windows(k, around, 0.0), _windows(v, around, 0.0)
    y = attended(q, k, v, mask, dropout).flatten(1, 2)
    if places is not None:
        y = in_order(y, *reversed(places))
    return y[:, :length].unflatten(0, heads.v.shape[:2])


def _inverse(order: Tensor) -> Tensor:
    """The place of each token among those that stand in ``order`` (X, L)."""
    index = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, index)


def in_order(t: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """``t`` (X, L, D) with the tokens of each row in ``order`` (X, L), whose ``inverse`` gradients
    are put in."""
    ordered: Tensor = _InOrder.apply(t, order, inverse)
    return ordered


class _InOrder(torch.autograd.Function):
    """Whole rows are copied, both ways; torch's gather goes by numbers, and its gradient adds."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        rows, length, _ = t.shape
        first = torch.arange(0, rows * length, length, device=t.device)
        return t.flatten(0, 1).index_select(0, (order + first[:, None]).flatten()).view(t.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return in_order(grad, inverse, order), None, None


def _latest_dense(
    heads: HeadInputs, labels: Tensor, window: int, clusters: int, both: bool
) -> Tensor:
    """`latest` by a mask over pairs, O(L^2): exported programs know no free number of chunks."""
    one = F.one_hot(labels, clusters + 1)
    rank = (one.cumsum(2) * one).sum(-1)
    lag = rank[..., None] - rank[..., None, :]
    near = lag.abs() < window if both else (lag >= 0) & (lag < window)
    return attended(*heads, near & (labels[..., None] == labels[..., None, :]))


def best_yet(
    heads: HeadInputs, scores: Tensor, window: int, state: Members, *, dropout: float = 0.0
) -> tuple[Tensor, Members]:
    """Attention in the clusters of which a token is among the best so far, and the state then.

    Time and, in training, memory of O(L K w) a channel: as much as dense attention for K w = L.

    Args:
        scores: (B, H, L, K); -inf is padding.
    """
    length = heads.q.shape[2]
    if torch.compiler.is_compiling():
        # one piece: a graph has to serve all lengths
        return _best_piece(heads, scores, window, state, dropout)
    size = max(window, _PIECE)
    parts = []
    for start in range(0, length, size):
        piece = HeadInputs(*(t[:, :, start : start + size] for t in heads))
        own = scores[:, :, start : start + size]
        y, state = _best_piece(piece, own, window, state, dropout)
        parts.append(y)
    return torch.cat(parts, 2), state


def _best_piece(
    heads: HeadInputs, scores: Tensor, window: int, state: Members, dropout: float
) -> tuple[Tensor, Members]:
    count, clusters, slots = heads.q.shape[2], state.keys.shape[2], state.keys.shape[3]
    priority = torch.cat((state.scores.to(scores.dtype), scores.mT), 3)
    keys, values = (
        torch.cat((old, new[:, :, None].expand(-1, -1, clusters, -1, -1).to(old.dtype)), 3)
        for old, new in ((state.keys, heads.k), (state.values, heads.v))
    )
    slot = torch.arange(slots + count, device=priority.device)
    # how many tokens up to t are better than j; of equal ones the earlier
    ahead, other = priority[..., :, None], priority[..., None, :]
    better = (ahead > other) | ((ahead == other) & (slot[:, None] < slot))
    times = better[..., slots:, :].cumsum(-2, dtype=torch.int32)
    times = times + better[..., :slots, :].sum(-2, keepdim=True, dtype=torch.int32)
    known = slot <= slot[slots:, None]
    mask = (times < window) & known & (other > -math.inf)
    member = mask[..., slots:].diagonal(dim1=-2, dim2=-1)
    mask = mask & member[..., None]
    q = heads.q[:, :, None].expand(-1, -1, clusters, -1, -1)
    y = _in_clusters(q, keys.to(q.dtype), values.to(q.dtype), mask, dropout)
    shares = member.sum(2)[..., None].clamp(min=1)
    y = (y * member[..., None]).sum(2) / shares
    priority = _with_room(priority, window)
    at = best_positions(priority, _chosen_of(window, slots + count)).sort(-1).values
    columns = at.clamp(max=slots + count - 1)[..., None].expand(*at.shape, keys.shape[-1])
    seen_now = state.num_tokens + (scores[:, 0, :, 0] > -math.inf).sum(-1)
    after = Members(
        seen_now, keys.gather(3, columns), values.gather(3, columns), priority.gather(3, at)
    )
    return y.to(heads.v.dtype), after


def balanced(
    heads: HeadInputs, query_scores: Tensor, key_scores: Tensor, window: int, *,
    causal: bool = False, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention in clusters of the ``window`` best of all tokens: (B, H, L, D), O(K w^2 D).

    Args:
        query_scores, key_scores: (B, H, L, K) scores of queries and of keys; -inf is padding.
        causal: hide members that come later in the row. Which are members depends on all tokens.
    """
    best = _chosen_of(window, query_scores.shape[2])
    (queries, has_query), (keys, known) = (_best_of(u.mT, best) for u in (query_scores, key_scores))
    mask = has_query[..., None] & known[..., None, :]
    if causal:
        mask = mask & (keys[..., None, :] <= queries[..., None])
    q, k, v = (
        gathered(t, at.flatten(2)).unflatten(2, at.shape[2:])
        for t, at in ((heads.q, queries), (heads.k, keys), (heads.v, keys))
    )
    y = _in_clusters(q, k, v, mask, dropout)
    member = mask.any(-1)
    at = queries.flatten(2)
    total = torch.zeros_like(heads.v)
    total = total.scatter_add(
        2, at[..., None].expand(*at.shape, y.shape[-1]), (y * member[..., None]).flatten(2, 3)
    )
    shares = torch.zeros_like(at[..., :1].expand(-1, -1, total.shape[2]))
    shares = shares.scatter_add(2, at, member.flatten(2).to(shares.dtype))
    return total / shares[..., None].clamp(min=1)


def best_positions(scores: Tensor, count: int) -> Tensor:
    """Positions (..., count), in any order, of the largest ``scores`` (..., L); of equal ones the
    first, which `topk` does not promise."""
    length = scores.shape[-1]
    if count == length:
        return torch.arange(length, device=scores.device).expand_as(scores)
    top, at = scores.topk(count + 1, -1)
    last, at = top[..., -2:-1], at[..., :count]
    if scores.device.type != "cpu" or torch.compiler.is_compiling():
        priority = length - torch.arange(length, device=scores.device)
        return (priority * _first_of(scores, last, count)).topk(count, -1).indices
    tied = (top[..., -1] == top[..., -2]) & (top[..., -1] > -math.inf)
    if bool(tied.any()):
        at[tied] = _first_of(scores[tied], last[tied], count).nonzero()[:, -1].view(-1, count)
    return at


def _chosen_of(window: int, tokens: int) -> int:
    """Tokens that a cluster chooses of so many; in a graph, which serves all lengths, ``window`` of
    those that `_with_room` gives."""
    return window if torch.compiler.is_compiling() else min(window, tokens)


def _with_room(scores: Tensor, count: int) -> Tensor:
    """``scores`` (..., L), in a graph with so many that are not real behind them that ``count`` can
    be chosen."""
    if not torch.compiler.is_compiling():
        return scores
    return F.pad(scores, (0, count), value=-math.inf)


def _first_of(scores: Tensor, last: Tensor, count: int) -> Tensor:
    """Flags of ``count`` that are above ``last`` (..., 1) or equal to it, the first of these."""
    above = scores > last
    equal = scores == last
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def _best_of(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Positions (B, H, K, count) of the largest ``scores`` (B, H, K, L), and which are real.

    Padding comes last, so that it has no part in ranks.
    """
    length = scores.shape[-1]

    def best() -> Tensor:
        priority = _with_room(scores, count)
        at = best_positions(priority, count)
        return (at + length * (priority.gather(-1, at) == -math.inf)).sort(-1).values.int()

    at = choose(best).long()
    return at % length, at < length


def _in_clusters(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Attention (B, H, K, n, D) in every cluster by itself."""
    rows = q.shape[:2]
    q, k, v, mask = (t.flatten(0, 1) for t in (q, k, v, mask))
    return attended(q, k, v, mask, dropout).unflatten(0, rows)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    if not dropout and kernels.able(q, k, v, mask):
        return kernels.few_attention(q, k, v, mask, False, 1 / math.sqrt(q.shape[-1]))
    k, v, mask = in_even_rows(q, k, v, mask)
    return named_once(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout))


def _windows(chunks: Tensor, around: int, filler: float) -> Tensor:
    """Every chunk (X, n, C, ...) with the one before it, and of three the one after it."""
    edge = [0, 0] * (chunks.dim() - 2)
    parts = [F.pad(chunks, (*edge, 1, 0), value=filler)[:, :-1], chunks]
    if around == 3:
        parts.append(F.pad(chunks, (*edge, 0, 1), value=filler)[:, 1:])
    return torch.cat(parts, 2)


def gathered(t: Tensor, index: Tensor) -> Tensor:
    """``t`` (B, H, L, D) at ``index`` (B, H, n)."""
    return t.gather(2, index[..., None].expand(*index.shape, t.shape[-1]))
