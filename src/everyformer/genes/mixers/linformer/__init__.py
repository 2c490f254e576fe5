"""Linformer: keys and values of all tokens projected along the length to k slots.

    K = (E X) W_K^T + b_K,  V = (F X) W_V^T + b_V         E, F of (k, n), n = ``max_length``
    Y = concat_h(softmax_k(Q_h K_h^T / sqrt(D)) V_h) W_o^T

A text of S <= n tokens uses the first S columns: column j of E meets its j-th real token. Who
shares E and F (``sharing``): nobody (one for each head, K and V, layer), the heads of a layer
(headwise), also keys with values (key-value: E = F), also all layers (layerwise).

``causal_chunk`` = c is an extension of ours, not of the paper, which has no causal form: every slot
mixes all positions, and no mask over slots can hide the later ones. There the text is cut into
segments of c tokens; a token sees its own segment up to itself, exactly, and the slots of every
earlier segment, made by one E and F of (k, c) for all. It knows no ``max_length``.

Cost: O(L k D) time a head, O(L k) memory; with segments O(L (c + L k / c) D), state 2 d k / c
numbers a token and the segment that is being filled.

Sources: Wang et al. 2020, arXiv 2006.04768, sections 4 and 5; fairseq's `linformer_src`, whose
order (project the length first, then the channels, bias last) and start (Xavier, gain 1/sqrt(2))
are taken. Deviation: fairseq lets padding into the slots, here it is left out.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Count, Dropout
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.core.trials import LENGTH, LONGEST, Make, Pair, Trials, are_attention
from everyformer.engines.softmax.attention import attention_weights, softmax_attention
from everyformer.engines.softmax.cache import ContextState
from everyformer.engines.softmax.visibility import Visibility
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import HeadMixer, Rows
from everyformer.genes.mixers.linformer.slots import (
    LinformerState,
    OpenSegment,
    Slots,
    advanced,
    compress,
    compress_reference,
    linformer_chunked,
    linformer_reference,
)

Sharing = Literal["none", "headwise", "key-value", "layerwise"]
DEFAULT_SLOTS = 256


@dataclass(frozen=True)
class LinformerOptions(Options):
    """Options of `Linformer`."""

    k: Count | None = None
    """slots that the length is projected to, max_length at most (default: 256 or that; of a
    segment, a quarter of causal_chunk)"""
    sharing: Sharing = "headwise"
    """who has the same E: nobody; all heads of a layer; keys and values too; all layers too"""
    causal_chunk: Count | None = None
    """tokens of a segment (causal only; an extension of ours)"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: Dropout = 0.0
    """dropout on the L x k weights in training"""
    gone: ClassVar[dict[str, Any]] = {"projection": "linear", "frozen": False}


def _one_to_one(mixer: Any) -> None:
    """E = F = I."""
    own = mixer.length_map.data
    own.copy_(torch.eye(own.shape[-1]).to(own).expand_as(own))


def _limits(make: Make) -> list[Pair]:
    """A slot for each token is attention; so are one segment, and segments of such slots."""
    cases: dict[str, dict[str, Any]] = {
        "a slot for each token": {"k": LENGTH, "max_length": LENGTH}
    }
    if make("attention").causal:
        cases = {
            f"segments of {size} with a slot a token": {"causal_chunk": size, "k": size}
            for size in (LONGEST, 4)
        }
    return are_attention("linformer", cases, _one_to_one)(make)


@MIXERS.register("linformer")
class Linformer(HeadMixer):
    """Attention to k slots over (B, L, width); see the module's text for the symbols.

    Args:
        causal: only with ``options.causal_chunk``.
        max_length: n, columns of E and F; not needed with segments.

    Raises:
        GeneError: causal without segments, segments without causal, no max_length, more slots than
            tokens.
    """

    name = "linformer"
    trials = Trials(
        causal=(
            {"causal_chunk": 4},
            {"causal_chunk": 3, "k": 2, "sharing": "none", "bias": ("key", "value")},
            {"causal_chunk": 4, "k": 2, "sharing": "key-value"},
            {"causal_chunk": 1},
        ),
        bidirectional=(
            {},
            {"k": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
            {"k": 5, "sharing": "key-value", "bias": ("key",)},
            {"k": 5, "sharing": "layerwise"},
        ),
        limits=_limits,
    )
    states = (LinformerState, ContextState)
    supports_cross = True
    Options = LinformerOptions
    options: LinformerOptions

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o, causal = self.options, self.causal
        self.reach = self._reach(causal, max_length, o.causal_chunk)
        self.max_length = None if causal else self.reach
        quarter = max(1, self.reach // 4)
        slots = o.k or (quarter if causal else min(DEFAULT_SLOTS, self.reach))
        if slots > self.reach:
            longest = "causal_chunk" if causal else "max_length"
            raise GeneError(
                f"`k={slots}` slots for `{longest}={self.reach}` tokens would hold more than the "
                f"tokens themselves: give `k` of at most {self.reach}, or a larger `{longest}`"
            )
        if causal:
            self.no_context = (
                "linformer with causal_chunk cuts its own text into segments; build the mixer that "
                "reads a context with `causal=False`"
            )
        self.slots = slots
        self.add_projections(o.bias)
        maps = 2 if o.sharing in ("none", "headwise") else 1
        groups = self.heads if o.sharing == "none" else 1
        self.length_map = nn.Parameter(torch.empty(maps, groups, slots, self.reach))
        for matrix in self.length_map.data.flatten(0, 1):
            nn.init.xavier_uniform_(matrix, gain=1 / math.sqrt(2))

    def _reach(self, causal: bool, max_length: int | None, chunk: int | None) -> int:
        """Columns of E."""
        if causal and chunk is None:
            raise GeneError(
                "linformer has no causal form: every slot mixes all positions, so that no mask "
                "over slots hides the later ones. Use `causal=False`, the extension "
                "`causal_chunk=64` (member 'linformer-chunked'), or a causal member"
            )
        if chunk is not None and not causal:
            raise GeneError(
                f"`causal_chunk={chunk}` cuts a text for `causal=True`; with `causal=False` "
                f"leave it out"
            )
        if chunk is not None:
            return chunk
        if max_length is None:
            raise GeneError(
                "linformer holds matrices over positions, so it needs max_length: give "
                "`max_length=...` (the longest sequence)"
            )
        return max_length

    def join(self, first: Mixer) -> None:
        """The first layer's E for this layer too, if they share it."""
        assert isinstance(first, Linformer)
        if "layerwise" not in (self.options.sharing, first.options.sharing):
            return
        own, theirs = tuple(self.length_map.shape), tuple(first.length_map.shape)
        if own != theirs or self.options.sharing != first.options.sharing:
            raise GeneError(
                "`sharing='layerwise'` has one E for all layers, but they differ in sharing or k: "
                f"{self.options.sharing} {own} against {first.options.sharing} {theirs}. Give all "
                "layers the same, or use `sharing='key-value'`"
            )
        self.length_map = first.length_map

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        if state is not None:
            assert isinstance(state, LinformerState)
            return self._continue(rows, state)
        if self.causal:
            return MixerOutput(self._segments(rows.x), None, {})
        return MixerOutput(self._attend(rows.x, self._slots(rows, rows.x)), None, {})

    def cross_reference(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        y = torch.zeros_like(q := self.project.one(x, "query"))
        if keys.shape[1]:
            k, v = self._reference(keys[0], "key"), self._reference(values[0], "value")
            y = linformer_reference(q, k, v)
        return self.merge(y)

    def text_reference(self, text: Rows) -> Tensor:
        q, tokens = self.project.one(text.x, "query")[0], text.x[0]
        if not self.causal:
            k, v = self._reference(tokens, "key"), self._reference(tokens, "value")
            return self.merge(linformer_reference(q, k, v)[None])
        size, rows = self.reach, []
        k, v = self.project.one(text.x, "key")[0], self.project.one(text.x, "value")[0]
        for t in range(len(tokens)):
            first = t // size * size
            past = [tokens[n : n + size] for n in range(0, first, size)]
            keys = [self._reference(part, "key") for part in past] + [k[:, first : t + 1]]
            values = [self._reference(part, "value") for part in past] + [v[:, first : t + 1]]
            query = q[:, t : t + 1]
            rows.append(linformer_reference(query, torch.cat(keys, 1), torch.cat(values, 1)))
        return self.merge(torch.cat(rows, 1)[None])

    def _reference(self, tokens: Tensor, part: Literal["key", "value"]) -> Tensor:
        """Keys or values (H, slots, D) of the real tokens (S, width) of a row or segment."""
        own = self.length_map[0 if part == "key" else -1]
        slots = [compress_reference(tokens, weight) for weight in own]
        heads = self.project.one(torch.stack(slots), part)
        return heads[0] if len(own) == 1 else heads.diagonal().permute(2, 0, 1)

    def empty_state(self, batch: int, **like: Any) -> LinformerState:
        none = torch.zeros(batch, self.heads, 0, self.head_dim, **like)
        heads = none.transpose(1, 2)
        inputs = torch.zeros(batch, 0, self.width, **like)
        num_tokens = torch.zeros(batch, dtype=torch.long, device=none.device)
        return LinformerState(num_tokens, none, none, OpenSegment(num_tokens, inputs, heads, heads))

    def encode_context(self, keys: Rows, values: Tensor) -> ContextState:
        """The slots of a context."""
        read = self._slots(keys, values)
        filled = read.filled
        if filled is None:
            filled = read.keys.new_ones(len(read.keys), read.keys.shape[2], dtype=torch.bool)
        num_tokens = torch.zeros(len(read.keys), dtype=torch.long, device=read.keys.device)
        return ContextState(num_tokens, read.keys, read.values, filled)

    def cross_attend(self, x: Tensor, context: State) -> Tensor:
        assert isinstance(context, ContextState)
        return self._attend(x, Slots(context.keys, context.values, context.padding_mask))

    def _slots(self, keys: Rows, values: Tensor) -> Slots:
        """Keys and values of the slots of whole rows."""
        self.check_length(keys.x.shape[1])
        padding_mask, filled = keys.padding_mask, None
        if padding_mask is not None:
            filled = padding_mask[:, :1].expand(-1, self.slots)
        return Slots(*self._project(keys.x, values), filled)

    def _project(self, keys_from: Tensor, values_from: Tensor) -> tuple[Tensor, Tensor]:
        """Slots (B, H, K, D) of rows whose real tokens come first and the rest is zero."""
        weight = self.length_map
        if weight.shape[1] > 1:
            # each head has its own E: with the channels projected first, it meets D of them alone
            k = compress(self.project.one(keys_from, "key", biased=False), weight[:1])[0]
            v = compress(self.project.one(values_from, "value", biased=False), weight[1:])[0]
            return self._biased(k, "key"), self._biased(v, "value")
        if keys_from is values_from:
            slots = compress(keys_from[:, None], weight)
            first, last = slots[0, :, 0], slots[-1, :, 0]
        else:
            first = compress(keys_from[:, None], weight[:1])[0, :, 0]
            last = compress(values_from[:, None], weight[-1:])[0, :, 0]
        return self.project.one(first, "key"), self.project.one(last, "value")

    def _biased(self, heads: Tensor, part: str) -> Tensor:
        if part not in self.project.biased:
            return heads
        return heads + self.project.biases[part].view(self.heads, 1, -1)

    def _attend(self, x: Tensor, slots: Slots) -> Tensor:
        """Queries of ``x`` over slots, through the output layer."""
        q = self.project.one(x, "query")
        hidden = None if slots.filled is None else slots.filled[:, None, None, :]
        visible = Visibility(mask=hidden)
        if tracing():
            record(self, "slot_weights", lambda: attention_weights(q, slots.keys, visible))
        y = softmax_attention(q, slots.keys, slots.values, visible, dropout=self.dropout)
        return self.merge(y)

    def _segments(self, x: Tensor) -> Tensor:
        """The extension over whole rows; padding after a row's end is read by no real token."""
        length, size = x.shape[1], self.reach
        count = (length + size - 1) // size
        x = F.pad(x, (0, 0, 0, count * size - length))
        q, k, v = (t.unflatten(2, (count, size)) for t in self.project(x))
        cut = x.unflatten(1, (count, size))
        whole = cut.flatten(0, 1)
        keys, values = self._project(whole, whole)
        slots = tuple(t.unflatten(0, cut.shape[:2]).transpose(1, 2) for t in (keys, values))
        y = linformer_chunked(q, k, v, (slots[0], slots[1]), self.dropout)
        return self.merge(y.flatten(2, 3)[:, :, :length])

    def _continue(self, rows: Rows, state: LinformerState) -> MixerOutput:
        """Outputs of tokens after those of the state, at most a segment at a time."""
        outputs = []
        for part in rows.pieces(self.reach):
            heads, of = self.project(part.x), (self._project, self.reach, self.slots)
            y, state = advanced(part.x, heads, part.padding_mask, state, *of, self.dropout)
            outputs.append(self.merge(y))
        y = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
        return MixerOutput(y, state, {})
