"""Routed attention without parameters but centroids.

See `everyformer.genes.mixers.routing` for the symbols and the source.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from everyformer.core.choices import choose
from everyformer.core.errors import ShapeError
from everyformer.engines.content.clustered import HeadInputs, Members, balanced, best_yet, latest

Routing = Literal["strict", "prefix", "paper"]


def routing_attention(
    q: Tensor, k: Tensor, v: Tensor, q_scores: Tensor, k_scores: Tensor | None = None, *,
    window: int, routing: Routing | None = "strict", keep: Tensor | None = None,
    bias: Tensor | None = None, dropout: float = 0.0,
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
        bias: (H, R + 1), or (H, 2 R + 1) without order, by rank in the cluster.
        dropout: on the weights.
    """
    if q_scores.shape[:3] != q.shape[:3]:
        raise ShapeError(
            f"scores must be (batch, heads, length, clusters) for queries {tuple(q.shape)}, not "
            f"{tuple(q_scores.shape)}"
        )
    heads, clusters = HeadInputs(q, k, v), q_scores.shape[-1]
    if routing == "strict":
        labels = hidden(nearest(q_scores), clusters, keep)
        y = latest(heads, labels, window, clusters, bias=bias, dropout=dropout)
        return y if keep is None else y * keep[:, None, :, None]
    if routing == "prefix":
        state = Members.empty((*q.shape[:2], clusters), q.shape[-1], device=q.device, dtype=q.dtype)
        scores = real_scores(choose(lambda: q_scores), keep)
        return best_yet(heads, scores, window, state, bias=bias, dropout=dropout)[0]
    scores, causal = real_scores(q_scores, keep), routing is not None
    k_scores = scores if k_scores is None else real_scores(k_scores, keep)
    return balanced(heads, scores, k_scores, window, causal=causal, bias=bias, dropout=dropout)


def nearest(scores: Tensor) -> Tensor:
    """The nearest centroid (B, H, L) by ``scores`` (B, H, L, K): a choice."""
    small = torch.int16 if scores.shape[-1] < 2**15 else torch.int32
    return choose(lambda: scores.argmax(-1).to(small)).long()


def hidden(labels: Tensor, clusters: int, keep: Tensor | None) -> Tensor:
    """``labels`` (B, H, L) with ``clusters`` for padding."""
    return labels if keep is None else labels.masked_fill(~keep[:, None], clusters)


def real_scores(scores: Tensor, keep: Tensor | None) -> Tensor:
    """``scores`` (B, H, L, K) with -inf for padding."""
    return scores if keep is None else scores.masked_fill(~keep[:, None, :, None], -math.inf)
