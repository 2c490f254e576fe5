"""Kernel attention: what its members share; their features and gates are in their own files.

    y_t = sum_s fq(q_t) . fk(k_s) v_s / sum_s fq(q_t) . fk(k_s),    Y = concat_h(y) W_o

Padding has features of zero. In cross form the context is read once into a state of constant size.
There is no matrix of weights, so there is no dropout on it, and no bias that a position could add
to it.

Letters: B batch, H heads, L queries, S keys, D channels of a head, M features.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.leaving import leaves_torch
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.core.trials import WIDTH, Make, Pair, output
from everyformer.engines.kernel.attention import ask, kernel_attention, read_all
from everyformer.engines.kernel.denominators import POSITIVE, Denominator, divided
from everyformer.engines.kernel.maps import SegmentMap
from everyformer.engines.kernel.sums import ContextSums, KernelState
from everyformer.engines.projections import Rotary, identity
from everyformer.engines.ranges import widened
from everyformer.engines.remade import remade
from everyformer.engines.softmax.visibility import visibility
from everyformer.genes.mixers.base import HeadMixer, Rows

Keys = tuple[Tensor, Tensor | None]
"""Features of keys (B, H, S, M), and their levels (B, H, S)."""
Bias = tuple[Literal["query", "key", "value", "output"], ...]


@dataclass(frozen=True)
class KernelOptions(Options):
    """Options of every kernel attention."""

    bias: Bias = ()
    """which projections have a bias"""


class KernelAttention(HeadMixer):
    """Kernel attention over (B, L, width); a member adds its features, and gates if it has them.

    A position rotates queries and keys before their features.
    """

    states = (KernelState, ContextSums)
    supports_cross = True
    shares_heads = True
    guard: Denominator = POSITIVE
    """of the denominators; a member with a choice sets its own"""
    features: int
    """M"""
    levels: bool
    """whether keys have levels or gates, which a state must then follow"""

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        self.features, self.levels = self.feature_sizes()
        if (position := self.position) is not None:
            position.check_mixer(self.name, self.heads, self.causal)
            if position.acts_on == "scores":
                raise GeneError(
                    f"position '{position.name}' is added to scores of pairs, which {self.name} "
                    "never forms: use a position of the embeddings, or 'rope'"
                )
            self.no_context = (
                f"position '{position.name}' is defined between tokens of one sequence; build "
                "cross-attention with `position=None`"
            )
        self.add_projections(self.options.bias)
        self.add_features()

    def feature_sizes(self) -> tuple[int, bool]:
        """``features`` and ``levels`` by the options, which are refused where they have no form."""
        raise NotImplementedError

    def add_features(self) -> None:
        """Parameters and buffers of the features, denominators and gates, made once."""

    def draw(self, carried: bool, again: bool = True) -> Tensor | None:
        """The random projection of this call, if features have one.

        ``carried``: a state goes on. ``again``: False where a context was read by this draw.
        """
        return None

    def map(self, drawn: Tensor | None) -> SegmentMap | None:
        """The map of queries and keys that sums over the past make themselves, a part at a time.

        None: their features are made beforehand.
        """
        return None

    def scaled(self, x: Tensor) -> Tensor:
        """Queries or keys (B, H, L, D) as a `map` takes them."""
        return x

    def query_features(self, q: Tensor, drawn: Tensor | None) -> Tensor:
        """Features (B, H, L, M) of queries (B, H, L, D), up to a factor for each query."""
        raise NotImplementedError

    def key_features(self, k: Tensor, drawn: Tensor | None) -> Keys:
        """Features of keys (B, H, S, D)."""
        raise NotImplementedError

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """log g and log(1 - g), (B, H, L) each, if the member has gates and is causal."""
        return None

    def literal_gates(self, x: Tensor) -> Tensor | None:
        """g itself (B, H, L), by its equation."""
        return None

    def reference_scores(self, q: Tensor, k: Tensor, drawn: Tensor | None) -> Tensor:
        """fq(q) . fk(k) (B, H, L, S) by the equations of the paper."""
        raise NotImplementedError

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Logs of the weights (B, H, L, S) that features estimate, for q, k of (B, H, L, D).

        None: softmax's, which maps that estimate no kernel replace.
        """
        return None

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        x, padding_mask = rows.x, rows.padding_mask
        drawn = self.draw(carried=state is not None)
        apply_rotary: Rotary = identity
        if self.position is not None:
            positions = rows.positions(None if state is None else state.num_tokens)
            apply_rotary = partial(self.position.rotate, positions=positions)
        both, v = self.project.side_by_side(x)
        both = apply_rotary(both)
        q, k = both.chunk(2, 1)
        inside = self.causal and x.shape[1] > 1 and x.is_cpu
        by = self.map(drawn) if inside and not (tracing() or leaves_torch()) else None
        if by is not None:
            features, keys = self.scaled(both).chunk(2, 1)
            level = None
        elif x.shape[1] == 1:
            features, keys, level = self._at_once(both, drawn)
        else:
            features = self.query_features(q, drawn)
            keys, level = self.key_features(k, drawn)
        gates = self.gates(x)
        gate = None
        if gates is not None:
            gate, written = gates
            level = written if level is None else level + written
        if tracing():
            self._record((features, keys), (padding_mask, level, gate))
            record(self, "exact", lambda: self._exact(q, k, padding_mask, gates))
        if not self.causal:
            with remade(features, keys):
                y = ask(features, read_all(keys, v, padding_mask, level), self.guard, v.dtype)
            return MixerOutput(self.merge(y), None, {})
        assert state is None or isinstance(state, KernelState)
        with remade(features, keys):
            y, after = kernel_attention(
                features, keys, v,
                padding_mask=padding_mask, level=level, gate=gate, state=state, guard=self.guard,
                feature_map=by,
            )  # fmt: skip
        return MixerOutput(self.merge(y), None if state is None else after, {})

    def text_reference(self, text: Rows) -> Tensor:
        q, k, v = self.project(text.x)
        if self.position is not None:
            q, k = (self.position.rotate(t, text.positions()) for t in (q, k))
        scores = self.reference_scores(q, k, self.draw(carried=False, again=False))
        gates = self.literal_gates(text.x)
        if gates is not None:
            scores = scores * gate_weights(gates, text.padding_mask)
        mask = self._visible(q, text.padding_mask)
        return self.merge(dense_average(scores, v, mask, self.guard))

    def empty_state(self, batch: int, **like: Any) -> KernelState:
        if self.position is not None:
            self.position.check_streaming()
        rows = batch, self.heads
        return KernelState.empty(rows, self.features, self.head_dim, self.levels, **like)

    def encode_context(self, keys: Rows, values: Tensor) -> ContextSums:
        """The sums of a context."""
        k, v = self.project.one(keys.x, "key"), self.project.one(values, "value")
        features, level = self.key_features(k, self.draw(carried=False))
        num_tokens = torch.zeros(k.shape[0], dtype=torch.long, device=k.device)
        return ContextSums(num_tokens, read_all(features, v, keys.padding_mask, level))

    def cross_attend(self, x: Tensor, context: State) -> Tensor:
        assert isinstance(context, ContextSums)
        q = self.project.one(x, "query")
        features = self.query_features(q, self.draw(False, again=False))
        return self.merge(ask(features, context.sums, self.guard, q.dtype))

    def cross_reference(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k = self.project.one(x, "query"), self.project.one(keys, "key")
        v = self.project.one(values, "value")
        scores = self.reference_scores(q, k, self.draw(False, again=False))
        return self.merge(dense_average(scores, v, None, self.guard))

    def _at_once(self, both: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Features of one token's query and key (B, 2 H, 1, D), and the key's level.

        An operation on one token costs more than what it computes, so both are made by one.
        """
        if drawn is None:
            features, keys = self.key_features(both, None)[0].chunk(2, 1)
            return features, keys, None
        # as if they were two tokens of H heads
        pair = both.squeeze(2).unflatten(1, (2, -1)).transpose(1, 2)
        made, level = self.key_features(pair, drawn)
        features, keys = made.split(1, 2)
        return features, keys, None if level is None else level[:, :, 1:]

    def _record(self, features: tuple[Tensor, Tensor], logs: tuple[Tensor | None, ...]) -> None:
        """Offer the features and the weights (B, H, L, L) that are never formed otherwise."""
        (q, k), (padding_mask, level, gate) = features, logs
        record(self, "features", lambda: k)
        mask = self._visible(q, padding_mask)

        def weights() -> Tensor:
            scores = q @ k.mT
            if level is not None:
                past = torch.zeros_like(level) if gate is None else gate.cumsum(2)
                logs = (level - past)[:, :, None] + 0 * scores
                logs = logs if mask is None else logs.masked_fill(~mask, -math.inf)
                scores = scores * (logs - logs.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
            one = torch.eye(k.shape[2], dtype=q.dtype, device=q.device).expand_as(scores)
            return dense_average(scores, one, mask, self.guard)

        record(self, "weights", weights)

    def _exact(
        self, q: Tensor, k: Tensor, padding_mask: Tensor | None, gates: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """The weights (B, H, L, L) of the kernel itself, where features only estimate it."""
        logs = self.log_kernel(q, k)
        if logs is None:
            logs = widened(q) @ widened(k).mT / math.sqrt(self.head_dim)
        if gates is not None:
            gate, written = gates
            gate = gate if padding_mask is None else gate.masked_fill(~padding_mask[:, None], 0)
            logs = logs + (written - gate.cumsum(2))[:, :, None]
        mask = self._visible(q, padding_mask)
        logs = logs if mask is None else logs.masked_fill(~mask, -math.inf)
        return logs.softmax(-1).nan_to_num(0)

    def _visible(self, q: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """Visible pairs among the tokens of one call, broadcastable to (B, H, L, L)."""
        at = torch.arange(q.shape[2], device=q.device)[None]
        return visibility(
            None, at, at, causal=self.causal, windows=(None,), padding_mask=padding_mask
        ).mask


def gate_weights(gate: Tensor, padding_mask: Tensor | None) -> Tensor:
    """(1 - g_s) prod_{s < u <= t} g_u (B, H, L, L) of g (B, H, L), each row over its largest.

    The factor of a row cancels in the average. Padding has g = 1 and writes nothing.
    """
    written = 1 - gate
    if padding_mask is not None:
        gate = gate.masked_fill(~padding_mask[:, None], 1)
        written = written.masked_fill(~padding_mask[:, None], 0)
    one = torch.eye(gate.shape[-1], dtype=gate.dtype, device=gate.device)
    row, rows = torch.zeros_like(gate), []
    for t in range(gate.shape[-1]):
        row = row * gate[..., t, None] + written[..., t, None] * one[t]
        top = row.amax(-1, keepdim=True).detach()
        rows.append(row / top.masked_fill(top == 0, 1))
    return torch.stack(rows, -2)


def dense_average(scores: Tensor, v: Tensor, mask: Tensor | None, guard: Denominator) -> Tensor:
    """sum_s scores v_s / sum_s scores over the pairs of ``mask``: (B, H, L, D_v)."""
    if mask is not None:
        scores = scores.masked_fill(~mask, 0)
    sums = torch.cat([scores @ v.to(scores.dtype), scores.sum(-1, keepdim=True)], -1)
    return divided(sums, guard)[0].to(v.dtype)


def value_limits(make: Make, member: str) -> list[Pair]:
    """Weights sum to one: a constant value is the output, and a lone token's own value is."""
    equal, mixer = make(member, bias=("value",)), make(member)
    with torch.no_grad():
        equal.project.weights[0][-WIDTH:].zero_()
        equal.project.biases["value"].fill_(1.0)

    def own(x: Tensor) -> Tensor:
        return mixer.out(mixer.project(x)[2].transpose(1, 2).flatten(2))[:, :1]

    return [
        ("a constant value is the output", output(equal), lambda x: equal.out(torch.ones_like(x))),
        ("token 0 alone gives its own value", lambda x: mixer(x[:, :1]).y, own),
    ]
