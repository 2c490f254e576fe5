"""Routing Transformer: tokens that one centroid is near to see each other, other heads look nearby.

    q_i = n(W_q x_i), k_i = n(W_k x_i), v_i = W_v x_i      n: LayerNorm over D without gain and bias
    u_ic = q_i . mu_c                                      c = 1 .. K, centroids of every head
    I_c = the w tokens of largest u_.c, in the order of the row (of queries; of keys by k . mu_c)
    o_i = mean over c with i in I_c of sum_{j in I_c} softmax_j(q_i . k_j / sqrt(D)) v_j

A token in no I_c gets 0. Causal, k = q, as in all published language models. Half of the heads are
local instead: plain attention to the last w tokens (both ways: to those nearer than w).

Causal, I_c as above is chosen by looking at the whole row (``routing="paper"``, j <= i): what lies
ahead decides who is a member, so losses of such a model are not those of a model that writes. Two
others are strictly causal, equal in training, in evaluation and token by token:

    strict   i sees the last w tokens j <= i of its own nearest centroid, itself included: ours, and
             the default, since its losses mean what they say at the cost of the paper's
    prefix   I_c is chosen again for every i among the tokens up to i: what the paper's model does
             when it writes; O(L K w D), as much as dense attention

Layers may differ, as where published models route in the last ones alone: mixer=by_layer(
"attention", "routing") with window=by_layer(256, 64), whose first value is of local attention;
local_heads=by_layer(6, 4); or --by-layer mixer=attention,routing window=256,64 for the command.

Centroids follow the queries (and keys) by averages in training (`engines.content.centroids`);
losses["commitment"] = 1e-4 mean (q - mu_a)^2 draws queries to their nearest centroid a, with the
weight of all published models. With ``update="none"`` centroids stay as drawn: hashing by random
projections, the paper's baseline. Symbols: K = ``clusters``, w = ``window``.

Cost: O(L K D + L w D), O(L^1.5 D) for K = w = sqrt(L), the default. State: the w - 1 latest (or,
prefix, the w best) keys and values of every cluster, and w - 1 of local heads; twice as many where
room is reserved, so that a step writes in place.

Source: Roy, Saffar, Vaswani, Grangier 2020, arXiv 2003.05997, section 4; numbers as in the authors'
code. Deviations: the mean over several clusters is exact (theirs divides by the count + 0.01);
queries and keys move the centroids in one step, not in turn; averages begin at a count of 1. The
function and its literal form are in `everyformer.genes.mixers.routing.function`.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.parts import start
from everyformer.core.bounds import Count, Dropout, Rate, When, Whole
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.outputs import Losses, MixerOutput, add_losses
from everyformer.core.state import State, state
from everyformer.core.trace import record, tracing
from everyformer.engines.content.centroids import Centroids, Update
from everyformer.engines.content.clustered import HeadInputs, Members, attended, best_yet, latest
from everyformer.engines.content.recent import Recent, latest_next
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import HeadMixer, Rows
from everyformer.genes.mixers.routing.function import (
    Routing,
    hidden,
    local_weights_reference,
    nearest,
    real_scores,
    routing_attention,
    routing_weights_reference,
)
from everyformer.genes.mixers.routing.trials import TRIALS
from sequence_laws.memory import check_memory


@dataclass(frozen=True)
class RoutingOptions(Options):
    """Options of `RoutingAttention`."""

    clusters: Count | None = None
    """K, centroids of a head (default: max_length / window; without both its square root)"""
    window: Count | None = None
    """w, members of a cluster that are seen (default: max_length / clusters)"""
    routing: Routing = "strict"
    """which members a token sees when causal: see the text; paper lets the future choose"""
    local_heads: Whole | None = None
    """heads that see the last tokens instead (default: half; none beside mixers of other heads)"""
    update: Update = "ema"
    """what moves centroids: averages, or nothing"""
    decay: Annotated[Rate, When("update", "ema")] = 0.999
    """of the averages"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    gone: ClassVar[dict[str, Any]] = {
        "evaluation_routing": None, "local_window": None, "share_qk": None, "commitment": 1e-4,
        "rank_bias": None,
    }  # fmt: skip


COMMITMENT = 1e-4
"""weight of the loss that draws queries to their centroids"""


@state
class RoutingState(State):
    """The members of the clusters of routed heads, and the last tokens of local ones."""

    num_tokens: Tensor
    routed: Recent | Members
    local: KeyValueState | None = None


class _RoutedHeads(NamedTuple):
    """Queries, keys and values of the heads of one call."""

    near: HeadInputs
    """of local heads"""
    far: HeadInputs
    """of routed heads, queries and keys normed"""
    q_scores: Tensor
    """(B, H, L, K) u of the routed queries"""
    k_scores: Tensor
    """(B, H, L, K) the same of their keys"""


@MIXERS.register("routing")
class RoutingAttention(HeadMixer):
    """Routing Transformer's attention over (B, L, width): local heads first, then routed ones.

    ``max_length`` decides the default numbers of clusters and members; longer texts work too.

    Raises:
        GeneError: numbers of clusters, members or heads that cannot be.
    """

    name = "routing"
    trials = TRIALS
    states = (RoutingState,)
    shares_heads = counts_tokens = True
    Options = RoutingOptions
    options: RoutingOptions

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o, width, heads, causal = self.options, self.width, self.heads, self.causal
        self.clusters, self.window = _sizes(o, max_length)
        members = (self.clusters + 1) * self.window
        check_memory(
            2.0 * members * width * torch.get_default_dtype().itemsize,
            f"routing: {self.clusters:,} clusters of {self.window:,} members, and as many last "
            "tokens,",
            "choose a smaller window or fewer clusters",
        )
        half = heads // 2 if self.alone else 0
        self.local = half if o.local_heads is None else o.local_heads
        _check(self)
        # which members a token sees; None: it sees all, both ways
        self.routing: Routing | None = o.routing if causal else None
        if self.routing == "paper":
            self.non_causal_reason = (
                "who is a member of a cluster is chosen by the whole row, later tokens included "
                "(routing='paper')"
            )
        routed, every = heads - self.local, heads * self.head_dim
        keys = self.local * self.head_dim if causal else every
        self.query = nn.Linear(width, every, bias=False)
        self.key = nn.Linear(width, keys, bias=False) if keys else None
        self.value = nn.Linear(width, every, bias=False)
        self.out = nn.Linear(every, width, bias=False)
        for linear in (self.query, self.key, self.value, self.out):
            if linear is not None:
                start(linear)
        self.centroids = Centroids(routed, self.clusters, self.head_dim, o.update, o.decay)

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        padding_mask = rows.padding_mask
        if self.training:
            self.centroids.watch(self.parameters())
        heads = self._project(rows.x)
        if tracing():
            scores = heads.q_scores
            record(self, "clusters", lambda: hidden(scores.argmax(-1), self.clusters, padding_mask))
            record(self, "weights", lambda: self._weights(heads, padding_mask))
        if state is None:
            y, after = self._whole(heads, padding_mask), None
        else:
            assert isinstance(state, RoutingState)
            y, after = self._continue(heads, padding_mask, state)
        if padding_mask is not None:
            y = y.masked_fill(~padding_mask[:, None, :, None], 0)
        y = self.merge(y)
        losses: Losses = {}
        if self.training:
            losses = self._learn(y, heads, padding_mask)
        return MixerOutput(y, after, losses)

    def text_reference(self, text: Rows) -> Tensor:
        heads = self._project(text.x)
        values = torch.cat((heads.near.v, heads.far.v), 1)
        return self.merge(self._weights(heads, None) @ values)

    @property
    def continues(self) -> bool:
        return self.causal and self.routing != "paper"

    def empty_state(self, batch: int, **like: Any) -> RoutingState:
        size, rows = self.head_dim, (batch, self.heads - self.local, self.clusters)
        kind = Members if self.routing == "prefix" else Recent
        routed = kind.empty(rows, size, **like)
        local = None
        if self.local:
            local = KeyValueState.empty((batch, self.local), size, size, **like)
            local = replace(local, num_tokens=routed.num_tokens)
        return RoutingState(routed.num_tokens, routed, local)

    def train(self, mode: bool = True) -> Self:
        """Mode of the module; evaluation begins with centroids that all steps have moved."""
        if not mode:
            self.centroids.watch(self.parameters())
        return super().train(mode)

    def end_step(self) -> None:
        self.centroids.finalise()

    def _project(self, x: Tensor) -> _RoutedHeads:
        q, v = (self._split(linear(x)) for linear in (self.query, self.value))
        keys = q[:, :0] if self.key is None else self._split(self.key(x))
        near, far = (t[:, : self.local] for t in (q, keys, v)), q[:, self.local :]
        wide = F.layer_norm(widened(far), (self.head_dim,))
        q_scores = k_scores = self.centroids.scores(wide)
        own = other = wide.to(q.dtype)
        if not self.causal:
            wide = F.layer_norm(widened(keys[:, self.local :]), (self.head_dim,))
            k_scores, other = self.centroids.scores(wide), wide.to(q.dtype)
        routed = HeadInputs(own, other, v[:, self.local :])
        return _RoutedHeads(HeadInputs(*near), routed, q_scores, k_scores)

    def _split(self, y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _whole(self, heads: _RoutedHeads, padding_mask: Tensor | None) -> Tensor:
        """All heads (B, H, L, D) over a row of its own."""
        near = heads.near
        y = routing_attention(
            *heads.far, heads.q_scores, heads.k_scores,
            window=self.window, padding_mask=padding_mask,
            routing=self.routing, dropout=self.dropout,
        )  # fmt: skip
        if not self.local:
            return y
        labels, both = self._local_labels(near, padding_mask), not self.causal
        local = latest(near, labels, self.window, 1, both=both, dropout=self.dropout)
        return torch.cat((local, y), 1)

    def _continue(
        self, heads: _RoutedHeads, padding_mask: Tensor | None, state: RoutingState
    ) -> tuple[Tensor, RoutingState]:
        """All heads over tokens that follow those of the state."""
        near, far, scores, _ = heads
        window, dropout = self.window, self.dropout
        routed: Recent | Members
        if isinstance(state.routed, Members):
            scores = real_scores(scores, padding_mask)
            y, routed = best_yet(far, scores, window, state.routed, dropout=dropout)
        else:
            y, routed = latest_next(
                far,
                scores.argmax(-1),
                window,
                state.routed,
                padding_mask=padding_mask,
                dropout=dropout,
            )
        local = None
        if state.local is not None:
            before, local = self._near(near, padding_mask, state.local)
            y = torch.cat((before, y), 1)
        return y, RoutingState(routed.num_tokens, routed, local)

    def _near(
        self, near: HeadInputs, padding_mask: Tensor | None, state: KeyValueState
    ) -> tuple[Tensor, KeyValueState]:
        """Local heads (B, H, L, D) over tokens that follow those of the state."""
        length, window = near.q.shape[2], self.window
        positions = None
        if padding_mask is not None or state.padding_mask is not None:
            positions = Rows(near.q[:, 0], padding_mask).positions(state.num_tokens)
        after = state.append(near.k, near.v, positions, padding_mask)
        keys, values, real = after.keys, after.values, after.padding_mask
        if length > 1:
            labels = self._local_labels(HeadInputs(keys, keys, values), real)
            q = F.pad(near.q, (0, 0, keys.shape[2] - length, 0))
            y = latest(HeadInputs(q, keys, values), labels, window, 1, dropout=self.dropout)
            y = y[:, :, -length:]
        else:
            mask = None
            if real is not None and positions is not None:
                mask = (real & (after.slots()[1] > positions - window))[:, None, None]
            elif keys.shape[2] > window:
                keys, values = (t[:, :, -window:] for t in (keys, values))
            y = attended(near.q, keys, values, mask, self.dropout)
        return y, after.last_in_room(window - 1)

    @staticmethod
    def _local_labels(near: HeadInputs, padding_mask: Tensor | None) -> Tensor | None:
        """0 for every token, 1 for padding: (B, H, L); None: there is none."""
        if padding_mask is None:
            return None
        return (~padding_mask[:, None]).long().expand(near.q.shape[:3])

    def _weights(self, heads: _RoutedHeads, padding_mask: Tensor | None) -> Tensor:
        """The literal weights of all heads (B, H, L, L)."""
        near, far, q_scores, k_scores = heads
        routed = routing_weights_reference(
            far.q,
            far.k,
            q_scores,
            k_scores,
            self.window,
            routing=self.routing,
            padding_mask=padding_mask,
        )
        local = local_weights_reference(near.q, near.k, self.window, self.causal, padding_mask)
        return torch.cat((local, routed), 1)

    def _learn(self, y: Tensor, heads: _RoutedHeads, padding_mask: Tensor | None) -> Losses:
        """The losses of the centroids; what they follow is counted when ``y`` gets a gradient."""
        losses: Losses = {}
        pairs = [(heads.far.q, heads.q_scores)]
        if not self.causal:
            pairs.append((heads.far.k, heads.k_scores))
        for x, scores in pairs:
            labels = nearest(scores)
            self.centroids.count(y, x, labels, padding_mask)
            if self.options.update != "none":
                more = COMMITMENT * self.centroids.commitment(x, labels, padding_mask)
                add_losses(losses, {"commitment": more})
        return losses


def _sizes(o: RoutingOptions, max_length: int | None) -> tuple[int, int]:
    """K and w."""
    if o.clusters is not None and o.window is not None:
        return o.clusters, o.window
    if max_length is None:
        raise GeneError(
            "routing takes its numbers of clusters and members from the longest text: give "
            "`max_length=...`, or `clusters=...` and `window=...`"
        )
    most = max_length / o.window if o.window else math.sqrt(max_length)
    clusters = o.clusters or max(1, round(most))
    return clusters, o.window or math.ceil(max_length / clusters)


def _check(mixer: RoutingAttention) -> None:
    if mixer.local >= mixer.heads:
        raise GeneError(
            f"routing: `local_heads={mixer.local}` of `heads={mixer.heads}` must leave at least "
            "one routed head"
        )
    if mixer.head_dim < 2:
        raise GeneError("routing normalises queries over a head's channels: give at least 2 each")
