"""Routed attention without parameters but centroids.

See `everyformer.genes.mixers.routing` for the symbols and the source.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from everyformer.core.choices import choose
from everyformer.core.errors import ShapeError
from everyformer.engines.content.clustered import HeadInputs, Members, balanced, best_yet, latest

Routing = Literal["strict", "prefix", "paper"]


def routing_attention(
    q: Tensor, k: Tensor, v: Tensor, q_scores: Tensor, k_scores: Tensor | None = None, *,
    window: int, routing: Routing | None = "strict", padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention among the tokens that one centroid is near to: (B, H, L, D).

    Args:
        q, k, v: (B, H, L, D).
        q_scores: (B, H, L, K) products of queries with centroids.
        k_scores: those of keys (default: ``q_scores``, for keys that are the queries).
        window: w, members of a cluster that are seen.
        routing: which members a token sees: "strict" the latest of its nearest centroid, "prefix"
            the best up to itself, "paper" the best of the row that are not later; None the best of
            the row.
        keep: (B, L) bool, which tokens are real; the others get 0.
        dropout: on the weights.
    """
    if q_scores.shape[:3] != q.shape[:3]:
        raise ShapeError(
            f"scores must be (batch, heads, length, clusters) for queries {tuple(q.shape)}, not "
            f"{tuple(q_scores.shape)}"
        )
    heads, clusters = HeadInputs(q, k, v), q_scores.shape[-1]
    if routing == "strict":
        labels = hidden(nearest(q_scores), clusters, padding_mask)
        y = latest(heads, labels, window, clusters, dropout=dropout)
        return y if padding_mask is None else y * padding_mask[:, None, :, None]
    if routing == "prefix":
        state = Members.empty((*q.shape[:2], clusters), q.shape[-1], device=q.device, dtype=q.dtype)
        scores = real_scores(choose(lambda: q_scores), padding_mask)
        return best_yet(heads, scores, window, state, dropout=dropout)[0]
    scores, causal = real_scores(q_scores, padding_mask), routing is not None
    k_scores = scores if k_scores is None else real_scores(k_scores, padding_mask)
    return balanced(heads, scores, k_scores, window, causal=causal, dropout=dropout)


def nearest(scores: Tensor) -> Tensor:
    """The nearest centroid (B, H, L) by ``scores`` (B, H, L, K): a choice."""
    small = torch.int16 if scores.shape[-1] < 2**15 else torch.int32
    return choose(lambda: scores.argmax(-1).to(small)).long()


def hidden(labels: Tensor, clusters: int, padding_mask: Tensor | None) -> Tensor:
    """``labels`` (B, H, L) with ``clusters`` for padding."""
    return labels if padding_mask is None else labels.masked_fill(~padding_mask[:, None], clusters)


def real_scores(scores: Tensor, padding_mask: Tensor | None) -> Tensor:
    """``scores`` (B, H, L, K) with -inf for padding."""
    return (
        scores
        if padding_mask is None
        else scores.masked_fill(~padding_mask[:, None, :, None], -math.inf)
    )


Group = Callable[[int], list[list[int]]]


def routing_weights_reference(
    q: Tensor, k: Tensor, q_scores: Tensor, k_scores: Tensor, window: int, *,
    routing: Routing | None, padding_mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The matrix of weights (B, H, L, L), row by row; arguments as in `routing_attention`."""
    batch, heads, length, size = q.shape
    weights = q.new_zeros(batch, heads, length, length)
    for b in range(batch):
        real = (
            list(range(length))
            if padding_mask is None
            else padding_mask[b].nonzero().squeeze(1).tolist()
        )
        for h in range(heads):
            groups = _groups(q_scores[b, h], k_scores[b, h], real, window, routing)
            for t in real:
                visible = [group for group in groups(t) if group]
                for group in visible:
                    scores = k[b, h, group] @ q[b, h, t] / math.sqrt(size)
                    weights[b, h, t, group] += scores.softmax(0) / len(visible)
    return weights


def _groups(
    q_scores: Tensor, k_scores: Tensor, real: list[int], window: int, routing: Routing | None
) -> Group:
    """For a token, the tokens that it sees in each of its clusters, first ones first."""
    nearest = q_scores.argmax(-1).tolist()
    clusters = range(q_scores.shape[1])

    def best(scores: Tensor, cluster: int, among: list[int]) -> list[int]:
        priority = scores[:, cluster].tolist()
        return sorted(sorted(among, key=lambda s: (-priority[s], s))[:window])

    if routing == "strict":
        return lambda t: [[s for s in real if s <= t and nearest[s] == nearest[t]][-window:]]
    if routing == "prefix":

        def so_far(t: int) -> list[list[int]]:
            groups = [best(q_scores, c, [s for s in real if s <= t]) for c in clusters]
            return [group for group in groups if t in group]

        return so_far
    members, keys = ([best(u, c, real) for c in clusters] for u in (q_scores, k_scores))
    last = math.inf if routing is None else 0
    return lambda t: [[s for s in keys[c] if s <= t + last] for c in clusters if t in members[c]]


def routing_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, q_scores: Tensor, k_scores: Tensor | None = None, *,
    window: int, routing: Routing | None = "strict", padding_mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The definition, one query at a time; arguments as in `routing_attention`."""
    k_scores = q_scores if k_scores is None else k_scores
    weights = routing_weights_reference(
        q, k, q_scores, k_scores, window, routing=routing, padding_mask=padding_mask
    )
    return weights @ v


def local_weights_reference(
    q: Tensor, k: Tensor, window: int, causal: bool, padding_mask: Tensor | None
) -> Tensor:
    """Weights (B, H, L, L) of heads that see the last ``window`` tokens, or those nearer."""
    batch, heads, length, size = q.shape
    weights = q.new_zeros(batch, heads, length, length)
    for b in range(batch):
        real = (
            list(range(length))
            if padding_mask is None
            else padding_mask[b].nonzero().squeeze(1).tolist()
        )
        for n, t in enumerate(real):
            first, last = max(0, n - window + 1), n + 1 if causal else n + window
            group = real[first:last]
            scores = k[b][:, group] @ q[b, :, t, :, None] / math.sqrt(size)
            weights[b, :, t, group] = scores.squeeze(-1).softmax(-1)
    return weights
