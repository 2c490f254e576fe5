"""Multi-head softmax attention: every query takes a weighted mean of values by similarity of keys.

    Q = X_q W_q^T,  K = X_k W_k^T,  V = X_v W_v^T         split into heads of size D (V: D_v)
    A_h = softmax_S(Q_h K_h^T / sqrt(D) + M),  O_h = A_h V_h,  Y = concat_h(O_h) W_o^T

Symbols: n = ``heads``; i_q, i_k, i_v, d_o = ``widths.query/key/value/output``; d_k, d_v of one head
= ``widths.key_dim/value_dim``. Fewer key-value heads than query heads (``kv_heads``) is
grouped-query attention (1: multi-query); query head h reads key-value head floor(h H_kv / H).

Cost: O(L S (D + D_v)) time a head, O(L + S) memory (fused softmax). State: keys and values of all
positions seen (of the last ``window`` when every head has one), rotated if RoPE is in use; with a
memory, what that keeps.

Sources: Vaswani et al. 2017, arXiv 1706.03762, section 3.2; Shazeer 2019, arXiv 1911.02150 (one
key-value head); Ainslie et al. 2023, arXiv 2305.13245 (groups). Differences from
`nn.MultiheadAttention`: True means "may be seen", and rows that see nothing give 0, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.mask import Mask, lengths_of, positions_of
from everyformer.core.mixer import Context, heads_divide, sources
from everyformer.core.outputs import MixerOutput
from everyformer.core.position import Position
from everyformer.core.state import State
from everyformer.core.subset import TokenSubset
from everyformer.core.trace import record, tracing
from everyformer.engines.projections import HeadProjections, identity
from everyformer.engines.softmax.cache import (
    ContextState,
    KeyValueState,
    has_holes,
    with_cache,
)
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import ScorePosition
from everyformer.engines.softmax.scored import AttentionCall, Scores
from everyformer.engines.softmax.visibility import of_queries, visibility, with_past
from everyformer.genes.memory.base import Lookup, Segment, by_contents
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.genes.mixers.attention.reference import attention_reference
from everyformer.genes.mixers.attention.trials import TRIALS
from everyformer.genes.mixers.base import BuiltMixer


@MIXERS.register("attention")
class Attention(BuiltMixer):
    """Multi-head softmax attention with its query, key, value and output projections."""

    name = "attention"
    trials = TRIALS
    states: tuple[type[State], ...] = (KeyValueState, ContextState)
    supported_masks = frozenset({"padding_mask", "attention_mask", "bias", "documents", "grid"})
    accepts_positions = True
    accepts_memory = True
    supports_cross = True
    shares_heads = True
    Options = AttentionOptions
    options: AttentionOptions
    position: Position | None

    def build(self, max_length: int | None) -> None:
        o, width, heads, causal = self.options, self.width, self.heads, self.causal
        self.kv_heads = heads if o.kv_heads is None else o.kv_heads
        if heads % self.kv_heads:
            raise GeneError(f"`heads={heads}` is not a multiple of `kv_heads={self.kv_heads}`")
        w = o.widths
        self.key_dim = w.key_dim or heads_divide(self.channels, heads, self.name)
        self.value_dim = w.value_dim or self.key_dim
        windows = o.window if isinstance(o.window, tuple) else (o.window,)
        if len(windows) not in (1, heads):
            raise GeneError(
                f"`window={o.window}` must be one number, or one for each of {heads} heads"
            )
        self._windows, position, memory = windows, self.position, self.memory
        if position is not None:
            position.check_mixer(self.name, heads, causal)
            position.check_sizes(self.name, self.key_dim, self.value_dim)
        if memory is not None:
            self.packs_with_state, self.states = True, (KeyValueState, memory.holds)
            memory.fit((heads, self.kv_heads), (self.key_dim, self.value_dim))
            self.position = None if memory.drops_position else position
        if memory is not None and not (causal and windows == (None,)):
            raise GeneError(
                f"memory '{memory.name}' carries the past of causal attention without a window, "
                f"not with `causal={causal}` and `window={o.window}`"
            )
        self.scale = o.scale if o.scale is not None else 1 / math.sqrt(self.key_dim)
        self.project = HeadProjections(
            (w.query or width, w.key or width, w.value or width),
            (heads, self.kv_heads),
            (self.key_dim, self.value_dim),
            o.bias,
            o.qk_norm,
        )
        self.out = nn.Linear(heads * self.value_dim, w.output or width, bias="output" in o.bias)
        self.output_width = w.output or width
        self.sink = nn.Parameter(torch.zeros(heads)) if o.sink else None
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    @classmethod
    def check_layer(cls, options: AttentionOptions, width: int, gene: str) -> None:
        for name in ("query", "key", "value", "output"):
            value = getattr(options.widths, name)
            if value not in (None, width):
                raise GeneError(
                    f"`{gene}.widths.{name}` must be `width={width}` in a layer, not {value}: all "
                    "layers of a model read and give as many channels. Leave it out"
                )

    @property
    def in_width(self) -> int:
        return self.options.widths.query or self.width

    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        self.check_input(x, context, mask, state)
        if context is not None or isinstance(state, ContextState):
            return self._cross(x, context, mask, state)
        memory, lookup, whole, runs = self.memory, None, mask, None
        past, farthest = self._past(x, state)
        if past is not None:
            whole, runs = with_past(mask, x.shape[1], past.keys.shape[2])
        positions, apply_rotary = None, identity
        if self.rotates or memory is not None or has_holes(whole, past):
            num_tokens = None if past is None else past.num_tokens
            positions = positions_of(x.shape[0], x.shape[1], whole, num_tokens, x.device)
            apply_rotary = partial(self.rotate, positions=positions)
        if memory is None:
            q, k, v = self.project(x, apply_rotary=apply_rotary)
        else:
            q, k, v = self.project_heads(x)
            lookup = memory.lookup((q, k, v), self.scale, mask, runs, state)
            q, k = apply_rotary(q), apply_rotary(k)
        k, v, visible, pairs, cache = with_cache(
            k, v, whole, positions, past,
            causal=self.causal, windows=self.windows, farthest=farthest,
        )  # fmt: skip
        call = AttentionCall(self.scores, q, k, v, visible, pairs)
        y = self.attend(call, lookup)
        if cache is None or memory is None:
            return MixerOutput(y, None if cache is None else cache.last(self.reach), {})
        assert positions is not None
        real = None if whole is None else whole.padding_mask
        usage = partial(call.usage, real)
        if tracing():
            record(self, "received", usage)
        document = None if runs is None else runs == runs[:, -1:]
        if isinstance(state, KeyValueState):
            cache = cache if document is None else cache.only(document)
            return MixerOutput(y, cache.last(self.reach), {})
        attend = partial(by_contents, self.project, self.scale, x.detach())
        segment = Segment(x, positions, real, document, attend, usage, cache, lookup)
        return MixerOutput(y, *memory.remember(state, segment))

    def _past(self, x: Tensor, state: State | None) -> tuple[KeyValueState | None, int | None]:
        """Keys and values from before ``x``, and `Recalled.farthest`."""
        if self.memory is not None and state is not None:
            self.memory.check_state(state, x.shape[0], self.width, self.key_dim)
        if state is None or isinstance(state, KeyValueState):
            return state, None
        assert self.memory is not None
        rows, farthest = self.memory.recall(state, x.shape[1])
        if self.memory.projected:
            return rows, farthest
        k, v = self.project.keys_and_values(rows.keys[:, 0])
        k = self.rotate(k, rows.slots()[1]) if self.rotates else k
        return KeyValueState(rows.num_tokens, k, v, rows.padding_mask, rows.positions), farthest

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """Outputs (B, L, width) of this module by `attention_reference` (slow, any dtype)."""
        self.check_input(x, context, mask, None)
        q, k, v = self.project_heads(x, context)
        tokens = q, k, v
        padding_mask = None if mask is None else mask.padding_mask
        q_positions, k_positions = (torch.arange(n)[None] for n in (x.shape[1], k.shape[2]))
        if context is None:
            q_positions = k_positions = self.positions(x, mask, None)
            q, k = self.rotate(q, q_positions), self.rotate(k, k_positions)
        causal, windows = (self.causal, self.windows) if context is None else (False, (None,))
        visible = visibility(
            None if mask is None else mask.without("bias"),
            q_positions, k_positions, causal=causal, windows=windows, padding_mask=padding_mask,
        ).mask  # fmt: skip
        o, inside = self.options, self.position if context is None else None
        literal: Any = partial(
            attention_reference, q, k, mask=visible, bias=None if mask is None else mask.bias,
            scale=self.scale, softcap=o.softcap,
            position=inside if isinstance(inside, ScorePosition) else None,
            distance=q_positions[:, :, None] - k_positions[:, None, :],
        )  # fmt: skip
        y = literal(v, sink=self.sink)
        if self.memory is not None and self.memory.looks_up and context is None:
            queries = self.memory.tokens(tokens, self.scale, mask, None, None)
            y = self.memory.reference(y, queries, lambda: self._literal_sums(literal, v))
        return self.out(y.transpose(1, 2).flatten(2))

    def _literal_sums(self, literal: Callable[..., Tensor], v: Tensor) -> Tensor:
        """Logarithms (B, H, L) of softmax's denominators Z: a key of score 0 and value 0 leaves
        Z / (Z + 1) of values that are 1."""
        ones, zero = torch.ones_like(v[..., :1]), v.new_zeros(self.heads)
        sums = literal(ones, sink=zero).squeeze(-1).logit()
        return sums if self.sink is None else sums.logaddexp(self.sink[:, None])

    def empty_state(self, batch: int, **like: Any) -> State:
        if self.position is not None:
            self.position.check_streaming()
        if self.memory is not None and self.memory.ring() is None:
            return self.memory.init_state(batch, self.width, **like)
        rows = batch, self.kv_heads
        return KeyValueState.empty(rows, self.key_dim, self.value_dim, **like)

    def read_context(self, context: Context, mask: Mask | None = None) -> ContextState:
        """Keys and values of a context, projected once; `forward` takes them as ``state``."""
        keys_from, values_from = sources(context)
        k, v = self.project.one(keys_from, "key"), self.project.one(values_from, "value")
        padding_mask = None if mask is None else mask.padding_mask
        if padding_mask is None:
            padding_mask = torch.ones(keys_from.shape[:2], dtype=torch.bool, device=k.device)
        num_tokens = torch.zeros(k.shape[0], dtype=torch.long, device=k.device)
        return ContextState(num_tokens=num_tokens, keys=k, values=v, padding_mask=padding_mask)

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        if self.memory is not None:
            after = self(x, mask=mask, state=state).state
            assert after is not None
            return after
        self.check_input(x, None, mask, state)
        assert isinstance(state, KeyValueState)
        positions = self.positions(x, mask, state.num_tokens)
        k, v = self.project.keys_and_values(x)
        padding_mask = None if mask is None else mask.padding_mask
        return state.append(self.rotate(k, positions), v, positions, padding_mask).last(self.reach)

    @property
    def supports_subset(self) -> bool:
        """True without a memory, whose state is made of all outputs."""
        return self.memory is None

    def answer(
        self, x: Tensor, chosen: TokenSubset, mask: Mask | None, state: State | None
    ) -> MixerOutput:
        """`forward` for the queries of ``chosen`` tokens, with all keys and values."""
        self.check_input(x, None, mask, state)
        assert state is None or isinstance(state, KeyValueState)
        hiding = of_queries(mask, chosen)
        if state is not None:
            hiding, _ = with_past(hiding, x.shape[1], state.keys.shape[2])
        padding_mask = None if mask is None else mask.padding_mask
        of_k = self.positions(x, mask, None if state is None else state.num_tokens)
        of_k = of_k.expand(x.shape[0], -1)
        of_q = chosen.pick(of_k)
        q = self.project.one(chosen.pick(x), "query")
        if self.rotates:
            # how long a text is, its chosen tokens alone do not tell
            q = self.rotate(q, of_q, chosen.pick(lengths_of(of_k)))
        k, v = self.project.keys_and_values(x)
        k = self.rotate(k, of_k)
        cache = None
        if state is not None:
            cache = state.append(k, v, of_k, padding_mask)
            k, v = cache.keys, cache.values
            padding_mask, of_k = cache.slots()
            cache = cache.last(self.reach)
        k, v, of_k = chosen.row(k), chosen.row(v), chosen.row(of_k)
        padding_mask = None if padding_mask is None else chosen.row(padding_mask)
        visible = visibility(
            hiding, of_q, of_k, causal=self.causal, windows=self.windows, padding_mask=padding_mask
        )
        pairs = Pairs.of(of_q, of_k, regular=False, causal=self.causal, length=x.shape[1])
        call = AttentionCall(self.scores, q, k, v, visible, pairs)
        return MixerOutput(self.attend(call), cache, {})

    def _cross(
        self, x: Tensor, context: Context | None, mask: Mask | None, state: State | None
    ) -> MixerOutput:
        if self.position is not None:
            raise UnsupportedError(
                f"position '{self.position.name}' is defined between tokens of one sequence; build "
                "cross-attention with `position=None`"
            )
        if isinstance(state, ContextState):
            cache, hides = state, True
        else:
            assert context is not None
            cache, hides = self.read_context(context, mask), mask is not None
        q = self.project.one(x, "query")
        of_q = torch.arange(q.shape[2], device=x.device)[None]
        of_k = torch.arange(cache.keys.shape[2], device=x.device)[None]
        visible = visibility(
            mask, of_q, of_k, causal=False, padding_mask=cache.padding_mask if hides else None
        )
        call = AttentionCall(self.scores, q, cache.keys, cache.values, visible)
        return MixerOutput(self.attend(call), state, {})

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Windows of the heads as in `visibility`; with a memory, those that it says."""
        return self._windows if self.memory is None else self.memory.windows(self._windows)

    @property
    def reach(self) -> int | None:
        """Number of past keys that some head can still see, or a memory keeps; None: all."""
        widths = [w for w in self.windows if w is not None]
        if len(widths) == len(self.windows):
            return max(widths) - 1
        return None if self.memory is None else self.memory.slots

    def positions(self, x: Tensor, mask: Mask | None, num_tokens: Tensor | None) -> Tensor:
        """Positions (B or 1, L) of the tokens of ``x``, after the ``num_tokens`` (B,) ones."""
        return positions_of(x.shape[0], x.shape[1], mask, num_tokens, x.device)

    @property
    def rotates(self) -> bool:
        return self.position is not None and self.position.acts_on == "queries-keys"

    def project_heads(
        self, x: Tensor, context: Context | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of heads, normed as a memory wants them."""
        q, k, v = self.project(x, context)
        if self.memory is not None:
            q, k = self.memory.heads(q, k, self.scale)
        return q, k, v

    def attend(self, call: AttentionCall, lookup: Lookup | None = None) -> Tensor:
        """Attention outputs of all heads through the output projection: (B, L, d_o)."""
        y = call.attend()
        if tracing():
            record(self, "weights", call.weights)
            if call.has_bias:
                record(self, "position_bias", call.position_bias)
        if lookup is not None:
            y = lookup.merge(y, call.log_sums)
        return self.out(y.transpose(1, 2).flatten(2))

    @property
    def scores(self) -> Scores:
        """Scale, soft cap, sink, position and dropout of the attention scores."""
        o = self.options
        position = self.position if isinstance(self.position, ScorePosition) else None
        dropout = o.attention_dropout if self.training else 0.0
        return Scores(self.scale, o.softcap, self.sink, position, dropout)
