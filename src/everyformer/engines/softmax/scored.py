"""Softmax attention whose scores depend on positions: the choice of the engine of a call.

    A = softmax_S(score(Q K^T * scale, i - j)),   O = A V  (+ what the position adds to values)

A position may change the queries, the scores and the outputs by the distance of every pair
(`ScorePosition`); the rest is softmax attention under the same masks as a plain call's. What no
plain call can do goes through blocks of queries (`everyformer.engines.softmax.blocks`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.trace import tracing
from everyformer.engines.dropout import dropout
from everyformer.engines.softmax import blocks
from everyformer.engines.softmax.attention import (
    ENGINE,
    attention_scores,
    softmax_attention,
    weights_of,
)
from everyformer.engines.softmax.distances import Distances, able, attention_by_distance
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import ScorePosition
from everyformer.engines.softmax.slopes import slopes_in
from everyformer.engines.softmax.visibility import Visibility


@dataclass(frozen=True)
class Scores:
    """Scale, soft cap, sink, position and dropout of a mixer's attention scores."""

    scale: float | None = None
    """factor on the products (default: 1/sqrt(D))"""
    softcap: float | None = None
    sink: Tensor | None = None
    """(H,)"""
    position: ScorePosition | None = None
    dropout: float = 0.0
    """on the weights"""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

        Without ``pairs`` nothing depends on order.
        """
        position, plain = self.position, self.softcap is None and self.sink is None
        slopes = None
        if position is not None and pairs is not None:
            if plain and (changed := self._one_query(q, visible, pairs)):
                q, visible = changed
                if position.adds_to_values:
                    return self._with_values(q, visible, k, v, pairs)
                return softmax_attention(q, k, v, visible, scale=self.scale, dropout=self.dropout)
            if plain and (of := self._by_distance(q, k, v, visible, pairs)):
                take(ENGINE, "kernels of distances")
                groups = q.shape[1] // k.shape[1]
                k, v = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (k, v))
                return attention_by_distance(of, k, v, visible.causal)
            slopes = self._slopes(q, k, visible, pairs, self.dropout)
            if slopes is None:
                return blocks.attend(q, k, v, self._call(q, visible, pairs, self.dropout))
        return softmax_attention(
            q, k, v, visible, scale=self.scale, dropout=self.dropout,
            softcap=self.softcap, sink=self.sink, slopes=slopes,
        )  # fmt: skip

    def weights(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """Attention weights A (B, H, L, S); rows that see nothing are zero."""
        return weights_of(self._all(q, k, visible, pairs), self.sink)

    def log_sums(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None = None
    ) -> Tensor:
        """Log-sum-exp (B, H, L) of the scores of each query, -inf where nothing is seen."""
        scores = self._all(q, k, visible, pairs)
        empty = (scores == -math.inf).all(-1)
        sums = scores.masked_fill(empty[..., None], 0.0).logsumexp(-1)
        sums = sums.masked_fill(empty, -math.inf)
        return sums if self.sink is None else sums.logaddexp(self.sink.to(sums)[None, :, None])

    def _all(self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs | None) -> Tensor:
        """All scores (B, H, L, S), written out; -inf: not visible."""
        slopes = None
        if self.position is not None and pairs is not None:
            slopes = self._slopes(q, k, visible, pairs, 0.0)
            if slopes is None:
                return blocks.all_scores(q, k, self._call(q, visible, pairs, 0.0))
        return attention_scores(
            q, k, visible, scale=self.scale, softcap=self.softcap, slopes=slopes
        )

    def _slopes(
        self, q: Tensor, k: Tensor, visible: Visibility, pairs: Pairs, dropout: float
    ) -> Tensor | None:
        """(H,) slopes that say all of the position and need no tensor of the pairs, or None."""
        # indices tell distances, no later key is seen, and no other bias is in the way
        bare = visible.mask is None or visible.mask.dtype == torch.bool
        if self.position is None or not (pairs.causal and pairs.regular and bare):
            return None
        slopes = self.position.slopes_of(torch.promote_types(q.dtype, torch.float32), q.device)
        if slopes is None or slopes_in(q, k, visible, slopes, dropout) == "written":
            return None
        return slopes

    def _call(self, q: Tensor, visible: Visibility, pairs: Pairs, dropout: float) -> blocks.Call:
        assert self.position is not None
        scale = self.factor(q)
        return blocks.Call(self.position, pairs, visible, scale, self.softcap, self.sink, dropout)

    def _by_distance(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility, pairs: Pairs
    ) -> Distances | None:
        """The call as kernels take it, or None."""
        if self.position is None or self.dropout or not able(q, k, v) or tracing():
            return None
        # columns tell distances, and nothing but later keys is hidden
        ends = pairs.farthest == k.shape[2] - 1 and pairs.causal == visible.causal
        if not pairs.regular or not ends or visible.mask is not None or q.shape[2] == 1:
            return None
        return self.position.distances(q, pairs, self.factor(q))

    def _one_query(
        self, q: Tensor, visible: Visibility, pairs: Pairs
    ) -> tuple[Tensor, Visibility] | None:
        """One query that continues a stream, as a plain call with a bias has it; or None."""
        position, hidden = self.position, visible.mask
        if position is None or q.shape[2] > 1 or not pairs.last:
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


class AttentionCall(NamedTuple):
    """One call of softmax attention: queries, keys and values, their mask and distances."""

    scores: Scores
    q: Tensor
    """(B, H, L, D)"""
    k: Tensor
    v: Tensor
    """(B, H_kv, S, ...)"""
    visible: Visibility
    pairs: Pairs | None = None
    """None: nothing depends on order"""

    def attend(self) -> Tensor:
        """Heads' outputs (B, H, L, Dv)."""
        return self.scores.attend(*self[1:])

    def weights(self) -> Tensor:
        """Attention weights (B, H, L, S)."""
        return self.scores.weights(self.q, self.k, self.visible, self.pairs)

    def log_sums(self) -> Tensor:
        """Log-sum-exp (B, H, L) of the scores of each query."""
        return self.scores.log_sums(self.q, self.k, self.visible, self.pairs)

    def usage(self, real: Tensor | None) -> Tensor:
        """Attention (B, S) that each key gets, over heads and queries that are ``real`` (B, L)."""
        weights = self.weights()
        weights = weights if real is None else weights.masked_fill(~real[:, None, :, None], 0)
        return weights.sum((1, 2))

    @property
    def has_bias(self) -> bool:
        """True where a position adds a bias by distance, and nothing else."""
        position = self.scores.position
        return position is not None and position.additive and self.pairs is not None

    def position_bias(self) -> Tensor:
        """Bias (B or 1, H, L, S) that the position adds to the scores."""
        assert self.scores.position is not None
        assert self.pairs is not None
        wide = torch.promote_types(self.q.dtype, torch.float32)
        return self.scores.position.by_distance(self.pairs.distances(), wide).transpose(0, 1)
