"""Multi-head softmax attention: every query takes a weighted mean of values by similarity of keys.

    Q = X_q W_q^T,  K = X_k W_k^T,  V = X_v W_v^T         split into heads of size D (V: D_v)
    A_h = softmax_S(Q_h K_h^T / sqrt(D) + M),  O_h = A_h V_h,  Y = concat_h(O_h) W_o^T

Symbols: n = ``heads``; i_q, i_k, i_v, d_o = ``widths.query/key/value/output``; d_k, d_v of one head
= ``widths.key_dim/value_dim``. Fewer key-value heads than query heads (``kv_heads``) is
grouped-query attention (1: multi-query); query head h reads key-value head floor(h H_kv / H).

Cost: O(L S (D + D_v)) time a head, O(L + S) memory (fused softmax). State: keys and values of all
positions seen (of the last ``window`` when every head has one), rotated if RoPE is in use.

Sources: Vaswani et al. 2017, arXiv 1706.03762, section 3.2; Shazeer 2019, arXiv 1911.02150 (one
key-value head); Ainslie et al. 2023, arXiv 2305.13245 (groups). Differences from
`nn.MultiheadAttention`: True means "may be seen", and rows that see nothing give 0, never NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.mask import Mask, positions_of
from everyformer.core.mixer import Context, Mixer, heads_divide, set_options
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.cache import ContextState, KeyValueState
from everyformer.engines.projections import HeadProjections
from everyformer.engines.softmax import (
    Visibility,
    attention_weights,
    continued_visibility,
    softmax_attention,
)
from everyformer.engines.visibility import visibility
from everyformer.mixers import MIXERS
from everyformer.positions.base import Position


@dataclass(frozen=True)
class Widths:
    """Free dimensions; None takes the usual choice."""

    query: int | None = None
    """i_q, channels of x (default: width)"""
    key: int | None = None
    """i_k, channels of the context that keys are made of (default: width)"""
    value: int | None = None
    """i_v, channels of the context that values are made of (default: width)"""
    output: int | None = None
    """d_o, channels of the output (default: width)"""
    key_dim: int | None = None
    """d_k, query and key channels of one head (default: width / heads)"""
    value_dim: int | None = None
    """d_v, value channels of one head (default: key_dim)"""


@dataclass(frozen=True)
class AttentionOptions:
    kv_heads: int | None = None
    """key-value heads; fewer than heads shares them in groups, 1 shares one (default: heads)"""
    widths: Widths = field(default_factory=Widths)
    """free input, output and head dimensions"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    qk_norm: bool = False
    """normalise queries and keys of each head (RMS, learned gain) before the product"""
    window: int | tuple[int | None, ...] | None = None
    """keys seen: i-j < window when causal, |i-j| < window when not; one number or one a head"""
    scale: float | None = None
    """factor on the scores (default: 1/sqrt(key_dim))"""
    softcap: float | None = None
    """scores s become c tanh(s/c)"""
    sink: bool = False
    """one learned extra score a head, of a key whose value is zero"""
    attention_dropout: float = 0.0
    """dropout on the weights in training"""


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False,
    bias: Tensor | None = None, scale: float | None = None, softcap: float | None = None,
    sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The definition, one query at a time: q (B, H, L, D), k and v (B, H_kv, S, ...).

    ``mask`` is bool, ``bias`` is added after scaling; both broadcast to (B, H, L, S).
    """
    batch, heads, queries, size = q.shape
    keys, groups = k.shape[2], heads // k.shape[1]
    full = (batch, heads, queries, keys)
    seen = torch.ones(full, dtype=torch.bool) if mask is None else mask.expand(full)
    added = torch.zeros(full, dtype=q.dtype) if bias is None else bias.expand(full)
    rows = []
    for i in range(queries):
        last = i + keys - queries + 1 if causal else keys
        heads_out = []
        for h in range(heads):
            scores = (k[:, h // groups] @ q[:, h, i, :, None]).squeeze(-1)
            scores = scores * (1 / math.sqrt(size) if scale is None else scale)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            scores = scores + added[:, h, i]
            shown = seen[:, h, i] & (torch.arange(keys) < last) & (added[:, h, i] > -math.inf)
            top = scores.masked_fill(~shown, -1e30).amax(-1, keepdim=True)
            if sink is not None:
                top = torch.maximum(top, sink[h])
            weight = torch.where(shown, (scores - top).masked_fill(~shown, 0).exp(), 0)
            total = weight.sum(-1, keepdim=True)
            if sink is not None:
                total = total + (sink[h] - top).exp()
            weight = weight / total.masked_fill(total == 0, 1)
            heads_out.append((weight[:, None] @ v[:, h // groups]).squeeze(1))
        rows.append(torch.stack(heads_out, 1))
    return torch.stack(rows, 2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention without parameters: (B, H, L, Dv).

    Args:
        q, k, v: (B, H, L, D), (B, H_kv, S, D), (B, H_kv, S, Dv).
        mask: a `Mask`, or bool broadcastable to (B, H, L, S) with True = may be seen.
        causal: query i sees keys up to i + (S - L).
        bias: float, added to the scaled scores.
    """
    if isinstance(mask, Tensor):
        mask = Mask(allowed=mask)
    if mask is None and bias is None and (not causal or q.shape[2] == k.shape[2]):
        return softmax_attention(q, k, v, Visibility(causal=causal), scale=scale)
    keys = torch.arange(k.shape[2], device=q.device)[None]
    queries = keys[:, -q.shape[2] :] if q.shape[2] <= k.shape[2] else None
    if queries is None:
        queries = torch.arange(q.shape[2], device=q.device)[None] + k.shape[2] - q.shape[2]
    keep = None if mask is None else mask.keep
    visible = visibility(mask, queries, keys, causal=causal, keep=keep, bias=bias)
    return softmax_attention(q, k, v, visible, scale=scale)


@MIXERS.register("attention")
class Attention(Mixer):
    """Multi-head attention with its projections; see the module's text for the symbols."""

    name = "attention"
    honours = frozenset({"keep", "allowed", "bias", "documents", "grid"})
    accepts_positions = True
    crosses = True
    shares_heads = True
    Options = AttentionOptions

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        causal: bool = False,
        max_length: int | None = None,
        channels: int | None = None,
        position: Position | None = None,
        options: Any = None,
    ) -> None:
        super().__init__()
        o: AttentionOptions = set_options(AttentionOptions, self.name, options)
        self.width, self.heads, self.causal, self.options = width, heads, causal, o
        self.kv_heads = heads if o.kv_heads is None else o.kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise GeneError(f"heads={heads} is not a multiple of kv_heads={self.kv_heads}")
        w = o.widths
        self.key_dim = w.key_dim or heads_divide(channels or width, heads, self.name)
        self.value_dim = w.value_dim or self.key_dim
        self.windows = o.window if isinstance(o.window, tuple) else (o.window,)
        if len(self.windows) not in (1, heads) or any(
            n is not None and n < 1 for n in self.windows
        ):
            raise GeneError(f"window={o.window} must be positive: one number, or one for each head")
        if position is not None:
            position.check_mixer(self.name, heads, causal)
        self.position = position
        self.scale = o.scale if o.scale is not None else 1 / math.sqrt(self.key_dim)
        self.project = HeadProjections(
            (w.query or width, w.key or width, w.value or width),
            (heads, self.kv_heads),
            (self.key_dim, self.value_dim),
            o.bias,
            o.qk_norm,
        )
        self.out = nn.Linear(heads * self.value_dim, w.output or width, bias="output" in o.bias)
        self.sink = nn.Parameter(torch.zeros(heads)) if o.sink else None
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        continued = None if isinstance(state, ContextState) else state
        self.check_input(x, context, mask, continued)
        if context is not None or isinstance(state, ContextState):
            return self._cross(x, context, mask, state)
        q, k, v = self.project(x)
        if state is None:
            positions = self._positions(x, mask, None)
            q, k = self._turn(q, positions), self._turn(k, positions)
            visible = self._visible(mask, positions, positions, None if mask is None else mask.keep)
            if tracing() and self._scored:
                self._show_bias(positions)
            return MixerOutput(self._attend(q, k, v, visible), None, {})
        assert isinstance(state, KeyValueState)
        simple = mask is None and state.keep is None and self._all_alike(q.shape[2], state)
        if simple and self.position is None:
            new = state.append(k, v, None, None)
        else:
            positions = self._positions(x, mask, state.seen)
            q, k = self._turn(q, positions), self._turn(k, positions)
            new = state.append(k, v, positions, None if mask is None else mask.keep)
        if simple:
            visible = continued_visibility(q.shape[2], new.keys.shape[2], q.device, self._slopes())
        else:
            keep, slots = new.slots()
            visible = self._visible(mask, positions, slots, keep, square=False)
        return MixerOutput(
            self._attend(q, new.keys, new.values, visible), new.last(self._reach()), {}
        )

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """The same module by `attention_reference` (slow, any dtype)."""
        q, k, v = self.project(x, context)
        keep = None if mask is None else mask.keep
        q_positions = k_positions = torch.arange(x.shape[1])[None]
        if context is None:
            q_positions = k_positions = self._positions(x, mask, None)
            q, k = self._turn(q, q_positions), self._turn(k, k_positions)
        else:
            k_positions = torch.arange(k.shape[2])[None]
        causal = self.causal and context is None
        windows = self.windows if context is None else (None,)
        shown = visibility(
            None if mask is None else mask.without("bias"),
            q_positions, k_positions, causal=causal, windows=windows, keep=keep,
        ).mask  # fmt: skip
        given = None if mask is None else mask.bias
        bias = self._bias(q_positions, k_positions) if context is None else None
        bias = given if bias is None else bias if given is None else bias + given
        o = self.options
        y = attention_reference(
            q, k, v, mask=shown, bias=bias, scale=self.scale, softcap=o.softcap, sink=self.sink
        )
        return self.out(rearrange(y, "b h l d -> b l (h d)"))

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> KeyValueState:
        if not self.causal:
            super().init_state(batch_size)
        if self.position is not None:
            self.position.check_streaming()
        like = self.out.weight
        return KeyValueState.empty(
            (batch_size, self.kv_heads), self.key_dim, self.value_dim,
            device=device or like.device, dtype=dtype or like.dtype,
        )  # fmt: skip

    def read_context(self, context: Context, mask: Mask | None = None) -> ContextState:
        """Project a context once; `forward` takes the result as ``state`` at every step."""
        keys_from, values_from = context if isinstance(context, tuple) else (context, context)
        k, v = self.project.one(keys_from, "key"), self.project.one(values_from, "value")
        keep = None if mask is None else mask.keep
        if keep is None:
            keep = torch.ones(keys_from.shape[:2], dtype=torch.bool, device=k.device)
        seen = torch.zeros(k.shape[0], dtype=torch.long, device=k.device)
        return ContextState(seen=seen, keys=k, values=v, keep=keep)

    def extend(self, x: Tensor, *, mask: Mask | None = None, state: State) -> State:
        assert isinstance(state, KeyValueState)
        positions = self._positions(x, mask, state.seen)
        k, v = self.project.one(x, "key"), self.project.one(x, "value")
        keep = None if mask is None else mask.keep
        return state.append(self._turn(k, positions), v, positions, keep).last(self._reach())

    def _cross(
        self, x: Tensor, context: Context | None, mask: Mask | None, state: State | None
    ) -> MixerOutput:
        if self.position is not None:
            raise UnsupportedError(
                f"position '{self.position.name}' is defined between tokens of one sequence; build "
                "cross-attention with position=None"
            )
        if mask is not None and mask.documents is not None:
            raise UnsupportedError("cross-attention has no packed documents; use mask.allowed")
        if isinstance(state, ContextState):
            held, hides = state, True
        else:
            assert context is not None
            held, hides = self.read_context(context, mask), mask is not None
        q = self.project.one(x, "query")
        here = torch.arange(q.shape[2], device=x.device)[None]
        there = torch.arange(held.keys.shape[2], device=x.device)[None]
        visible = visibility(mask, here, there, causal=False, keep=held.keep if hides else None)
        return MixerOutput(self._attend(q, held.keys, held.values, visible), state, {})

    def _positions(self, x: Tensor, mask: Mask | None, seen: Tensor | None) -> Tensor:
        return positions_of(x.shape[0], x.shape[1], mask, seen, x.device)

    def _turn(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.position is None or self.position.acts_on != "queries-keys":
            return x
        return self.position.rotate(x, positions)

    def _visible(
        self,
        mask: Mask | None,
        q_positions: Tensor,
        k_positions: Tensor,
        keep: Tensor | None,
        square: bool = True,
    ) -> Visibility:
        """Hidden keys of self-attention; a plain causal square needs no tensor at all."""
        plain = mask is None or not {"keep", "allowed", "bias", "documents"} & set(mask.parts())
        windowed = any(w is not None for w in self.windows)
        slopes = self._slopes()
        alike = slopes is not None or not self._scored
        if plain and keep is None and square and not windowed and alike:
            return Visibility(causal=self.causal, slopes=slopes)
        return visibility(
            mask, q_positions, k_positions, causal=self.causal, windows=self.windows,
            keep=keep, bias=self._bias(q_positions, k_positions),
        )  # fmt: skip

    @property
    def _scored(self) -> bool:
        return self.position is not None and self.position.acts_on == "scores"

    def _bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        if self.position is None or not self._scored:
            return None
        return self.position.bias(q_positions, k_positions, self._wide)

    def _show_bias(self, positions: Tensor) -> None:
        bias = self._bias(positions, positions)
        if bias is not None:
            record(self, "position_bias", lambda: bias)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.out.weight.dtype, torch.float32)

    def _slopes(self) -> Tensor | None:
        """Of a bias that is linear in distance, under a causal mask."""
        where = self.position if self.causal else None
        return None if where is None else where.slopes_of(self._wide, self.out.weight.device)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility) -> Tensor:
        o = self.options
        how: dict[str, Any] = {"scale": self.scale, "softcap": o.softcap, "sink": self.sink}
        if tracing():
            record(self, "weights", lambda: attention_weights(q, k, visible, **how))
        dropout = o.attention_dropout if self.training else 0.0
        y = softmax_attention(q, k, v, visible, dropout=dropout, **how)
        return self.out(y.transpose(1, 2).flatten(2))

    def _all_alike(self, length: int, state: KeyValueState) -> bool:
        """Whether ``length`` new tokens see all that came before, by their order alone."""
        if self._scored and self._slopes() is None:
            return False
        reach = self._reach()
        if reach is None:
            return all(w is None for w in self.windows)
        return length == 1 and len(set(self.windows)) == 1 and state.keys.shape[2] <= reach

    def _reach(self) -> int | None:
        """How many past keys a window can still show; None where some head sees all."""
        widths = [w for w in self.windows if w is not None]
        return max(widths) - 1 if len(widths) == len(self.windows) else None
