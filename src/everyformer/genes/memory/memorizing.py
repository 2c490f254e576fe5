"""The Memorizing Transformer's memory: attention over the nearest of many stored keys.

    q^ = |s_h| q / |q|,   k^ = k / |k|                  s_h learned, in place of 1 / sqrt(D)
    V_c = softmax(q^ k^^T) V                            the last n keys: a window, as XL's cache
    V_m = softmax over T of (q^ k^_t) V_t,   T = top k of the stored keys by q^ . k^_t
    out = g_h V_m + (1 - g_h) V_c,   g_h = sigmoid(b_h)

n = ``slots``, k = ``neighbours``, b_h = ``gate``; the store holds the last M = ``size`` keys and
values before a token's segment, first in, first out, a head each. Segments are n tokens of a
document: what the window of a segment's last token does not reach is in the store by then. A token
never finds its own segment or another document. Nothing flows back into the store: queries, s and b
learn how much of the result to take. A token without a result has V_c alone.

One layer has a store, at three quarters of the depth (the 9th of 12); the others have the window.
``combine=joint`` takes one softmax over the result and the window, without a gate; with
``written=leaving`` the store has exactly what left the window.

Cost: O(L M D) a head to look up and O(L n) for the window; the chosen rows cost O(L k D). State:
n keys and values a layer, M more in the layer with a store. No order is known of the result;
the layer's own positions are left out there unless ``keep_position``.

Source: Wu, Rabe, Hutchins, Szegedy 2022, arXiv 2203.08913, section 3; norms, scale, gate and the
dropped positions as in the authors' code, whose store is empty zeros at first (they are attended to
there, here they are not). The joint softmax is that of another public implementation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Count, Positive, Real, Unless, Whole
from everyformer.core.config import Choice, Options
from everyformer.core.mixer import set_options
from everyformer.core.outputs import Losses
from everyformer.core.panels import Panel, Panels, Recorded, layer_title
from everyformer.core.state import State, state
from everyformer.core.trace import record, tracing
from everyformer.core.trials import LENGTH, Make, Pair, Trials, output
from everyformer.engines.content.chosen import chosen_attention
from everyformer.engines.content.nearest import nearest
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.genes.memory import MEMORIES
from everyformer.genes.memory.base import Memory, Recalled, Segment, Tokens
from sequence_laws.memory import check_memory

EPSILON = 1e-6
"""added to squared lengths"""
AHEAD = 1024
"""tokens that an evaluation of windows reads ahead of each, and no more: a whole store would cost
it many times what the windows do; reading in order (``eval --mode recurrent``) fills the store"""
SPARE = 0.25
"""of the store, rows beyond it that wait until they are dropped together"""


@dataclass(frozen=True)
class MemorizingOptions(Options):
    """Options of `MemorizingMemory`."""

    slots: Count = 128
    """n, keys that the window shows, and tokens of a segment"""
    size: Annotated[Whole, Affects("results")] = 8192
    """M, keys and values that a head stores"""
    neighbours: Annotated[Count, Affects("results")] = 32
    """k, stored keys that a query reads"""
    combine: Literal["gate", "joint"] = "gate"
    """how the result joins the window: by a learned gate a head, or in one softmax"""
    gate: Annotated[Real, Unless("combine", "joint"), Affects("nothing")] = 0.0
    """b_h at the start; far below 0 a model begins as without a store"""
    normalize: bool = True
    """whether queries and keys have length 1, times a learned scale; False: 1 / sqrt(D)"""
    unit_scale: Annotated[Positive, Unless("normalize", False), Affects("nothing")] = 1.0
    """|s_h| at the start"""
    keep_position: bool = False
    """whether the layer's own position acts on the window"""
    written: Literal["segment", "leaving"] = "segment"
    """what is stored: all before a token's segment, or what has left its window"""
    gone: ClassVar[dict[str, Any]] = {"stores": None, "half": False}


@state
class MemorizingState(State):
    """Key-value caches of one layer: its window, and its store."""

    cut = True
    num_tokens: Tensor
    rows: KeyValueState
    """keys and values of the window"""
    stored: KeyValueState
    """keys and values of tokens in order, the newest segment among them"""
    begin: Tensor
    """(B,) int64, where the document began"""


class StoreLookup(NamedTuple):
    """Result of a look-up; see `everyformer.genes.memory.base.Lookup`."""

    memory: MemorizingMemory
    tokens: Tokens
    stored: KeyValueState
    """with the tokens of the segment"""

    def merge(self, y: Tensor, log_sums: Callable[[], Tensor]) -> Tensor:
        """``y`` (B, H, L, Dv) and what the store gives, by the gate or in one softmax."""
        o, sums = self.memory.read(self.tokens, self.stored)
        nothing = (sums == -math.inf)[..., None]
        if self.memory.gate is not None:
            share = self.memory.gate.sigmoid()[:, None, None]
        else:
            own = widened(log_sums())
            share = (sums.masked_fill(nothing[..., 0], 0.0) - own).sigmoid()[..., None]
        share = share.masked_fill(nothing, 0.0).to(y.dtype)
        return torch.lerp(y, o.to(y.dtype), share.expand_as(y))


def looked_up(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Histograms of how far back keys of look-ups lie: (B, H, L, k), -1 where there is none."""
    rows = []
    for path, distances in recorded.items():
        far = distances.flatten(2).transpose(0, 1).flatten(1)
        ends = int(far.max().clamp(min=1)).bit_length()
        octave = far.clamp(min=1).double().log2().long()
        shares = torch.stack([((octave == n) & (far >= 0)).sum(1) for n in range(ends)], 1)
        total = (far >= 0).sum(1, keepdim=True).clamp(min=1)
        title = layer_title(path, "found, by distance")
        axes = ("tokens back, as a power of two", "head")
        rows.append([Panel(title, (shares / total).numpy(), axes)])
    caption = (
        "How far back the stored keys lie that were found: of each head (a row) the share of its "
        "finds that are so many tokens back, from each power of two to the next."
    )
    return Panels(rows, caption, "share of what was found", wide=True)


def _limits(make: Make) -> list[Pair]:
    """Nothing stored, or a gate that is shut, is the window; all in one softmax is attention."""
    joint = {"combine": "joint", "written": "leaving", "neighbours": LENGTH, "normalize": False}
    plain = make("attention")
    whole = make("attention", memory="memorizing", memory_options={"slots": 3, **joint})
    whole.load_state_dict(plain.state_dict())
    pairs = [("all that left the window in one softmax", output(whole), output(plain))]
    for what, own in (("a shut gate", {"gate": -1e9}), ("nothing stored", {"size": 0})):
        options = {"slots": 3, "normalize": False, **own}
        closed = make("attention", memory="memorizing", memory_options=options)
        window = make("attention", window=3)
        closed.load_state_dict(window.state_dict(), strict=False)
        pairs.append((f"{what} leaves the window", output(closed), output(window)))
    return pairs


@MEMORIES.register("memorizing")
class MemorizingMemory(Memory):
    """The Memorizing Transformer's memory: a window of keys, and the nearest of M stored ones."""

    name = "memorizing"
    merges = "beside further keys and values, of the same queries"
    trials = Trials(
        variants=(
            {"slots": 3, "neighbours": 2, "size": 5},
            {"slots": 2, "neighbours": 3, "size": 40, "combine": "joint",
             "keep_position": True, "position": "t5-relative"},
            {"slots": 3, "neighbours": 2, "size": 7, "written": "leaving",
             "normalize": False, "keep_position": True, "position": "rope", "kv_heads": 1},
        ),
        limits=_limits,
    )  # fmt: skip
    learned_without: ClassVar[dict[str, Any]] = {
        "normalize": False, "keep_position": True, "gate": -4.0,
    }  # fmt: skip
    Options = MemorizingOptions
    holds = MemorizingState
    projected = True
    looks_up = True
    recorded: ClassVar[Recorded] = {"looked-up": looked_up}

    def __init__(self, *, width: int, options: Any = None) -> None:
        super().__init__()
        self.options: MemorizingOptions = set_options(MemorizingOptions, self.name, options)
        self.slots, self.size = self.options.slots, self.options.size
        self.drops_position = not self.options.keep_position
        self.scale: nn.Parameter | None = None
        self.gate: nn.Parameter | None = None

    @classmethod
    def in_layer(cls, choice: Choice, layer: int, layers: int) -> Choice:
        o: MemorizingOptions = choice.options
        if layer + 1 == -(-3 * layers // 4):
            return choice
        return Choice("segment", {"slots": o.slots, "same_length": "always", "store": "keys"})

    def fit(self, heads: tuple[int, int], dims: tuple[int, int]) -> None:
        o, (self._heads, self._dims) = self.options, (heads, dims)
        if o.normalize:
            self.scale = nn.Parameter(torch.full(heads[:1], o.unit_scale))
        if o.combine == "gate" and o.size:
            self.gate = nn.Parameter(torch.full(heads[:1], o.gate))

    def windows(self, own: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (self.slots,)

    @property
    def reach(self) -> int:
        return self.slots + self.size

    @property
    def ahead(self) -> int:
        return min(self.reach, max(self.slots, AHEAD))

    def heads(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if self.scale is None:
            return q, k
        factor = (self.scale.abs() / scale)[:, None, None]
        return (_unit(q) * factor).to(q.dtype), _unit(k).to(k.dtype)

    def init_state(self, batch_size: int, width: int, **like: Any) -> MemorizingState:
        rows = (batch_size, self._heads[1])
        window = KeyValueState.empty(rows, *self._dims, **like)
        stored = KeyValueState.empty(rows, *self._dims, **like)
        return MemorizingState(
            window.num_tokens, window, stored, torch.zeros_like(window.num_tokens)
        )

    def recall(self, state: MemorizingState, length: int) -> Recalled:
        return Recalled(state.rows)

    def begin(self, state: MemorizingState) -> Tensor:
        return state.begin

    def look_up(self, state: MemorizingState | None, tokens: Tokens) -> StoreLookup | None:
        if self.size == 0 or (state is None and tokens.order.shape[1] <= self.slots):
            return None
        k, v = tokens.keys.detach(), tokens.values.detach()
        if state is None:
            rows = (k.shape[0], k.shape[1])
            stored = KeyValueState.empty(rows, *self._dims, device=k.device, dtype=k.dtype)
        else:
            stored = state.stored
        return StoreLookup(self, tokens, stored.append(k, v, tokens.order, tokens.padding_mask))

    def visible(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """The first order (B, L) of a token that is in the store of each, and the end."""
        order, begin, n = tokens.order, tokens.begin, self.slots
        if self.options.written == "segment":
            end = begin + (order - begin) // n * n
        else:
            end = torch.maximum(order - n + 1, begin)
        return torch.maximum(end - self.size, begin), end

    def read(self, tokens: Tokens, stored: KeyValueState) -> tuple[Tensor, Tensor]:
        """Outputs (B, H, L, Dv) over the nearest stored keys, and log-sums of scores (B, H, L)."""
        q = widened(tokens.queries)
        batch, heads, length, _ = q.shape
        kv_heads = stored.keys.shape[1]
        grouped = q.reshape(batch, kv_heads, -1, q.shape[-1])
        padding_mask, order = stored.slots()
        count = self.options.neighbours
        if not torch.compiler.is_compiling():
            check_memory(
                batch * heads * length * count * (q.element_size() + 8),
                f"{count:,} stored keys for each of {batch * length:,} tokens",
                "choose fewer with a smaller `memory.neighbours`",
            )
        places = order.masked_fill(~padding_mask, -1)[:, None].expand(-1, kv_heads, -1)
        low, high = (
            t.expand(batch, -1).repeat(1, heads // kv_heads)[:, None].expand(-1, kv_heads, -1)
            for t in self.visible(tokens)
        )
        best = nearest(grouped, stored.keys, count, places=places, within=(low, high))
        if tracing():
            record(
                self, "looked-up", lambda: self._distances(tokens, best.keys, best.scores, order)
            )
        o, sums = chosen_attention(grouped, stored.keys, stored.values, best.keys, best.scores)
        return o.view(batch, heads, length, -1), sums.view(batch, heads, length)

    def _distances(self, tokens: Tokens, chosen: Tensor, scores: Tensor, order: Tensor) -> Tensor:
        """Distances (B, H, L, k) of queries to the keys of their look-up; -1 where none is."""
        batch, heads, length = tokens.queries.shape[:3]
        chosen, scores = (t.view(batch, heads, length, -1) for t in (chosen, scores))
        of = order[:, None, None].expand(-1, heads, length, -1).gather(-1, chosen)
        return (tokens.order[:, None, :, None] - of).masked_fill(scores == -math.inf, -1)

    def remember(self, state: MemorizingState, segment: Segment) -> tuple[State, Losses]:
        window, lookup = segment.cache, segment.lookup
        assert window is not None
        if segment.memory_mask is not None:
            window = window.only(segment.memory_mask)
        window = window.detach().last(self.slots - 1)
        if lookup is None:
            return replace(state, num_tokens=window.num_tokens, rows=window), {}
        most = self.size + self.slots
        stored = lookup.stored.last_of_many(most, spare=int(SPARE * most))
        begin = lookup.tokens.begin[:, -1].expand_as(state.begin)
        return MemorizingState(window.num_tokens, window, stored, begin), {}

    def reference(self, y: Tensor, tokens: Tokens, log_sums: Callable[[], Tensor]) -> Tensor:
        """Outputs token by token: the segment's past is sorted by products, the first k read."""
        batch, heads, length, _ = y.shape
        own = None if self.gate is not None else log_sums()
        rows = []
        for b, h, i in itertools.product(range(batch), range(heads), range(length)):
            past = self._past(tokens, b, i)
            if not past:
                rows.append(y[b, h, i])
                continue
            head = h * tokens.keys.shape[1] // heads
            keys, values = (t[b, head, past].detach() for t in (tokens.keys, tokens.values))
            scores = keys @ tokens.queries[b, h, i]
            best = scores.argsort(descending=True)[: self.options.neighbours]
            weights = scores[best].exp()
            if self.gate is not None:
                share = 1 / (1 + (-self.gate[h]).exp())
            else:
                assert own is not None
                share = weights.sum() / (weights.sum() + own[b, h, i].exp())
            o = weights / weights.sum() @ values[best]
            rows.append(share * o + (1 - share) * y[b, h, i])
        return torch.stack(rows).view_as(y)

    def _past(self, tokens: Tokens, row: int, at: int) -> list[int]:
        """Tokens of a row that are in the store of one of them, oldest first."""
        order, begin = (t.expand(len(tokens.keys), -1)[row].tolist() for t in tokens[3:5])
        since = order[at] - begin[at]
        segment = self.options.written == "segment"
        end = since - since % self.slots if segment else since - self.slots + 1
        past = [
            j
            for j in range(len(order))
            if (tokens.padding_mask is None or tokens.padding_mask[row, j])
            and begin[j] == begin[at]
            and order[j] - begin[j] < end
        ]
        return past[-self.size :] if self.size else []


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, in float32 at least."""
    x = widened(x)
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()
