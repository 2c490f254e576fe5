"""Softmax attention over a sparse plan: what the members with patterns share.

    y_i = sum_j p_ij v_j,   p_i = softmax over the j that the plan shows to i of q_i . k_j / sqrt(D)

A member says which plan a text of some length has. Here are its projections, positions, the stream
and the definition; rows have their real tokens in front, so that position = index. State: the keys
and values that some later query may see: a ring for windows, else all that the plan still needs,
thrown out when they are as many as those that it keeps.

Letters: B batch, H heads, L queries, S keys, D channels of a head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from torch import Tensor

from everyformer.core.bounds import Affects, Dropout
from everyformer.core.config import Options
from everyformer.core.devices import readable
from everyformer.core.leaving import leaves_torch
from everyformer.core.mask import positions_of
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.panels import Panels, Pictures
from everyformer.core.position import Position
from everyformer.core.shared import shared
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import ScorePosition
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.softmax.visibility import Visibility, common
from everyformer.engines.sparse.attention import Backend, dense_weights, sparse_attention
from everyformer.engines.sparse.panels import (
    Titled,
    kinds_of_heads,
    plan_panels,
    shows_every_pair,
    telling_size,
)
from everyformer.engines.sparse.plan import SparsePlan, Union
from everyformer.genes.mixers.attention.reference import attention_reference
from everyformer.genes.mixers.base import HeadMixer, Rows, largest

Heads = tuple[Tensor, Tensor, Tensor]
"""queries, keys and values (B, H, L, D)"""
Weigh = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""of queries, keys, values, what is visible, and the positions of queries and keys"""
PIECE = 256
"""queries of a continued text that read the cache in one go"""
LOOKED = 32
"""keys after which it is asked again which of all are needed"""
ROWS = 16
"""queries of one token each whose visible keys are found together"""


@dataclass(frozen=True)
class PatternOptions(Options):
    """Options of all members with patterns."""

    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    backend: Annotated[Backend, Affects("speed")] = "auto"
    """how it is computed: auto, dense, blocked or flex"""


class PatternAttention(HeadMixer):
    """Base of the members, which say what their heads read in (B, L, width), with the projections.

    Raises:
        GeneError: options that do not go with each other, with causal or with max_length.
    """

    states: tuple[type[State], ...] = (KeyValueState,)
    accepts_positions = True
    shares_heads = True
    position: Position | None
    examples: ClassVar[tuple[tuple[str, dict[str, Any]], ...]] = ()
    """titles and options of what is drawn where its own windows show every pair of so few tokens"""

    @final
    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        self.key_dim = self.key_channels(self.head_dim)
        if self.position is not None:
            self.position.check_mixer(self.name, self.heads, self.causal)
            self.position.check_sizes(self.name, self.key_dim, self.head_dim)
        self.add_projections(self.options.bias, self.key_dim)
        self.prepare(max_length)

    def prepare(self, longest: int | None) -> None:
        """Check ``options`` for texts of ``longest`` tokens at most, and make what plans need."""
        raise NotImplementedError

    def key_channels(self, size: int) -> int:
        """Channels of a head's queries and keys, where its values have ``size``."""
        return size

    def plan(self, length: int) -> SparsePlan:
        """Visible pairs of each head in ``length`` tokens; causal: of any longer text too."""
        raise NotImplementedError

    @property
    def row(self) -> int | None:
        """Tokens in a row, where the member thinks of them as lying in rows."""
        return None

    def sets(self) -> Titled:
        """Titled unions to draw in place of those of the heads; none: those."""
        return []

    @final
    def pictures(self, length: int | None, layers: Sequence[Mixer]) -> Pictures:
        return {"masks": lambda: self._masks(length, layers)}

    def _masks(self, length: int | None, layers: Sequence[Mixer]) -> Panels:
        size = length or telling_size(self.row, self.max_length)
        plans = [layer.plan(size) for layer in layers if isinstance(layer, PatternAttention)]
        titled = self.sets() or kinds_of_heads(plans)
        small = bool(self.examples) and shows_every_pair(titled, size, self.causal)
        if small:
            titled = [(title, self._like(size, options)) for title, options in self.examples]
        return plan_panels(titled, size, self.row, small)

    def _like(self, size: int, options: dict[str, Any]) -> Union:
        """The union of a head of the same member with other options."""
        member: Any = type(self)
        sizes = {"width": 8, "heads": 1, "causal": self.causal, "max_length": size}
        seen: Union = member(options=options, **sizes).plan(size).heads[0]
        return seen

    def heads_of(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        """Heads' outputs (B, H, L, D), and the state after them."""
        raise NotImplementedError

    def reference_heads(self, text: Rows) -> Tensor:
        """Heads' outputs (1, H, L, D) of one text, by `attention_reference` under its mask."""
        raise NotImplementedError

    @final
    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        heads, new = self.heads_of(rows, state)
        return MixerOutput(self.merge(heads), new, {})

    @final
    def text_reference(self, text: Rows) -> Tensor:
        return self.merge(self.reference_heads(text))

    def _reference(self, text: Rows) -> Tensor:
        """`reference_heads` by the plan alone."""
        length = text.x.shape[1]
        mask = self.plan(length).mask(length, self.heads)
        return self._by_definition(self.project(text.x), mask)

    def _by_definition(self, heads: Heads, mask: Tensor) -> Tensor:
        """Outputs of queries, keys and values (1, H, L, D) under ``mask`` (H or 1, L, L)."""
        q, k, v = heads
        positions = torch.arange(q.shape[2], device=q.device)[None]
        position = self.position if isinstance(self.position, ScorePosition) else None
        return attention_reference(
            self.rotate(q, positions), self.rotate(k, positions), v,
            mask=mask[None].to(q.device), position=position,
            distance=positions[:, :, None] - positions[:, None],
        )  # fmt: skip

    def empty_state(self, batch: int, **like: Any) -> State:
        if self.position is not None:
            self.position.check_streaming()
        return KeyValueState.empty((batch, self.heads), self.key_dim, self.head_dim, **like)

    def _by_plan(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        """`heads_of` by the plan alone."""
        assert state is None or isinstance(state, KeyValueState)
        (q, k, v), positions = self._project(rows, state)
        padding_mask = rows.padding_mask
        fresh = state is None or state.keys.shape[2] == 0
        new = place = None
        if state is not None:
            if padding_mask is None and state.padding_mask is None and len(rows.x[0]) == 1:
                place = common(state.num_tokens)
            holes = state.padding_mask is not None or padding_mask is not None
            new = state.append(k, v, positions if holes else None, padding_mask)
        if fresh:
            heads = self._whole(q, k, v, padding_mask)
        else:
            assert new is not None
            heads = self._continued(q, positions, new, place)
        return heads, None if new is None else self._trimmed(new, k.shape[2])

    def _project(self, rows: Rows, state: State | None) -> tuple[Heads, Tensor]:
        """Queries, keys and values, and their positions (B or 1, L)."""
        seen = None if state is None else state.num_tokens
        positions = positions_of(rows.x.shape[0], rows.x.shape[1], None, seen, rows.x.device)
        lengths = None if state is not None else rows.lengths[:, None]
        apply_rotary = partial(self.rotate, positions=positions, lengths=lengths)
        q, k, v = self.project(rows.x, apply_rotary=apply_rotary)
        return (q, k, v), positions

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Heads' outputs (B, H, L, D) of texts from their beginning."""
        lengths = None if padding_mask is None else padding_mask.sum(1)
        plan, scores = self.plan(q.shape[2]), self.scores
        if tracing():
            record(self, "weights", lambda: dense_weights(q, k, plan, lengths, scores))
        return self.attend(q, k, v, plan, lengths)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: SparsePlan, lengths: Tensor | None = None,
        scores: Scores | None = None,
    ) -> Tensor:  # fmt: skip
        """`sparse_attention` with the member's backend, and its scores unless others are passed."""
        scores, backend = scores or self.scores, self.options.backend
        return sparse_attention(q, k, v, plan, lengths=lengths, scores=scores, backend=backend)

    def _continued(
        self, q: Tensor, positions: Tensor, cache: KeyValueState, place: int | None
    ) -> Tensor:
        """Heads' outputs of queries whose keys are at the end of the cache; of one query that
        stands at this ``place`` in all rows, without holes before it, if that is known."""
        plan = self.plan(self._longest(cache, positions))
        if place is not None and self.scores.position is None:
            size = cache.keys.shape[2]
            mask, seen = shared(_row, plan.text, place, size, self.heads, q.dtype)
            keys, values = (_taken(t, seen) for t in (cache.keys, cache.values))
            return self.scores.attend(q, keys, values, Visibility(mask=mask))
        # no graph that leaves torch says how many pieces there are
        if leaves_torch() or q.shape[2] <= PIECE:
            return self._piece(plan, q, positions, cache)
        parts = zip(q.split(PIECE, 2), positions.split(PIECE, 1), strict=True)
        return torch.cat([self._piece(plan, queries, i, cache) for queries, i in parts], 2)

    def _piece(self, plan: SparsePlan, q: Tensor, i: Tensor, cache: KeyValueState) -> Tensor:
        """Heads' outputs of a few queries at positions ``i``."""
        at, padding_mask = cache.slots()[1], cache.padding_mask
        mask, j, seen = shared(_visible, plan, i, at, padding_mask, self.heads)
        keys, values = (_taken(t, seen) for t in (cache.keys, cache.values))
        return self._weighed(q, keys, values, mask, i, j)

    def _weighed(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        scores = self.scores
        if scores.position is not None:
            farthest = j.shape[1] - 1
            if readable(i) and j.shape[1]:
                farthest = int((i.amax(1) - j.amin(1)).max())
            pairs = Pairs.of(i, j, regular=False, causal=True, farthest=farthest)
            return scores.attend(q, k, v, Visibility(mask=mask), pairs)
        if q.shape[2] == 1:
            # torch would make addends of the flags again, in every layer
            mask = shared(_addends, mask, q.dtype)
        return scores.attend(q, k, v, Visibility(mask=mask))

    def _outputs(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        """Heads' outputs by all pairs of queries at positions i and keys at j of one text."""
        return self.scores.attend(q, k, v, Visibility(mask=mask), self._by_pairs(i, j))

    def _weights(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, i: Tensor, j: Tensor
    ) -> Tensor:
        """The weights of those pairs."""
        return self.scores.weights(q, k, Visibility(mask=mask), self._by_pairs(i, j))

    def _by_pairs(self, i: Tensor, j: Tensor) -> Pairs:
        keys = j.shape[1]
        columns = keys if self.causal else 2 * keys - 1
        return Pairs(i, j, keys - 1, columns, i.shape[1], False, self.causal)

    def _longest(self, cache: KeyValueState, positions: Tensor) -> int:
        """A length that holds all positions of this call."""
        if self.max_length is not None or not readable(positions):
            return self.max_length or positions.shape[1]
        return max(shared(largest, cache.num_tokens), 1)

    def _trimmed(self, cache: KeyValueState, more: int) -> KeyValueState:
        """Without what no later query sees, but for one: without any key a text would begin.

        ``more``: tokens that came just now."""
        plan = self.plan(self.max_length or 1)
        if plan.span is not None:
            return cache.last(max(plan.span, 1))
        size = cache.keys.shape[2]
        if not readable(cache.num_tokens) or size // LOOKED == (size - more) // LOOKED:
            return cache
        index = shared(_needed, plan, cache.num_tokens, *cache.slots())
        return cache if index is None else cache.at(index)

    @property
    def scores(self) -> Scores:
        """Rules by which scores of queries and keys become weights."""
        position = self.position if isinstance(self.position, ScorePosition) else None
        return Scores(1 / math.sqrt(self.key_dim), position=position, dropout=self.dropout)


def _visible(
    plan: SparsePlan, i: Tensor, at: Tensor, padding_mask: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, slice | Tensor | None]:
    """Visible pairs (B or 1, H or 1, L, n) of queries at ``i`` and those keys, of the ones at
    ``at`` (B, S), that some query sees; their positions (B, n), and where they are (None: all)."""
    mask = plan.visible(i, at, heads)
    mask = mask if padding_mask is None else mask & padding_mask[:, None, None]
    if not readable(mask):
        return mask, at, None
    where = _places(mask.any((0, 1, 2)))
    return (mask, at, where) if where is None else (mask[..., where], at[:, where], where)


def _places(seen: Tensor) -> slice | Tensor | None:
    """The places of the flags (S,): everywhere (None), side by side, or (n,) of them."""
    places = seen.nonzero().squeeze(1)
    if len(places) in (0, len(seen)):
        return None if len(places) else slice(0)
    # the first and the last, a view
    ends = places[:: max(len(places) - 1, 1)].tolist()
    together = ends[-1] - ends[0] + 1 == len(places)
    return slice(ends[0], ends[-1] + 1) if together else places


def _taken(t: Tensor, where: slice | Tensor | None) -> Tensor:
    """``t`` (B, H, S, D) at these places of S; None: all."""
    if isinstance(where, Tensor):
        return t.index_select(2, where)
    return t if where is None else t[:, :, where]


class _Next:
    """Keys that queries of one token each see by a plan, found for some that follow one another."""

    def __init__(self, text: str, heads: int) -> None:
        self.plan, self.heads = SparsePlan.from_text(text), heads
        self.known = 0, 0, torch.empty(0, 0, 0, dtype=torch.bool)
        """positions of the first query and key, and flags (H or 1, queries, keys)"""

    def of(self, place: int, size: int) -> Tensor:
        """(H or 1, ``size``) bool: keys up to ``place`` that the query there sees."""
        query, key, flags = self.known
        first = place + 1 - size
        if not 0 <= place - query < flags.shape[1] or first < key:
            with torch.inference_mode(False):
                at = torch.arange(first, place + ROWS)
                flags = self.plan.visible(at[size - 1 :], at, self.heads)
            query, key, _ = self.known = place, first, flags
        return flags[:, place - query, first - key : place + 1 - key]


_next = lru_cache(maxsize=8)(_Next)


def _row(
    text: str, place: int, size: int, heads: int, dtype: torch.dtype
) -> tuple[Tensor | None, slice | Tensor | None]:
    """Addends (1, H, 1, n) of a query at ``place`` for the keys that it sees in some head, None
    where all heads see alike; and where those are among the last ``size`` (None: all)."""
    mask = _next(text, heads).of(place, size)
    if len(mask) == 1:
        return None, _places(mask[0])
    where = _places(mask.any(0))
    mask = mask if where is None else mask[:, where]
    return _addends(mask[None, :, None], dtype), where


def _addends(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a pair is visible, else -inf."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -math.inf)


def _needed(plan: SparsePlan, seen: Tensor, padding_mask: Tensor, at: Tensor) -> Tensor | None:
    """The slots that later queries may see, and the last one; None where they are most of all."""
    needed = (plan.needed(at, seen[:, None]) & padding_mask).any(0)
    needed[-1] = True
    return None if 2 * int(needed.sum()) > len(needed) else needed.nonzero().squeeze(1)


class PlanAttention(PatternAttention):
    """Base of the members that are nothing but their plan."""

    @final
    def heads_of(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        return self._by_plan(rows, state)

    @final
    def reference_heads(self, text: Rows) -> Tensor:
        return self._reference(text)
