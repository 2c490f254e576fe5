"""Tokens of a length into slots, and the causal extension: segments that see themselves and slots
of earlier ones.

Letters: B batch, G groups of heads, S tokens, C channels, P one or two projections (keys, values);
H heads, N segments of c tokens, K slots of a segment, D channels of a head.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import readable
from everyformer.core.leaving import leaves_torch
from everyformer.core.shared import advanced as counted_on
from everyformer.core.state import state
from everyformer.core.subset import gather_rows
from everyformer.engines.dropout import dropout as drop
from everyformer.engines.growing import Growing
from everyformer.engines.ranges import full_precision, widened
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.softmax.visibility import Visibility, common, surely
from everyformer.engines.sparse.attention import sparse_attention
from everyformer.engines.sparse.patterns import Blocks, Columns
from everyformer.engines.sparse.plan import SparsePlan

AT_ONCE = 1024
"""tokens up to which all scores of segments are made at once: there calls cost more than scores"""


class Slots(NamedTuple):
    """Slots that queries read."""

    keys: Tensor
    """(B, H, K, D)"""
    values: Tensor
    """(B, H, K, D)"""
    filled: Tensor | None
    """(B, K) bool, which are made of a real token; None: all"""


def compress(x: Tensor, weight: Tensor) -> Tensor:
    """Slots of tokens, all at once and in float32 at least: (P, B, G, slots, C) in x's dtype.

    Args:
        x: (B, G, S, C), zero where nothing is real. weight: (P, G, k, n >= S).
    """
    with full_precision(x):
        wide = widened(x)
        return (_columns(weight, x.shape[2]).to(wide.dtype)[:, None] @ wide).to(x.dtype)


def _columns(weight: Tensor, count: int) -> Tensor:
    """The first ``count`` columns of the last dimension."""
    if leaves_torch():
        # looked up, since a slice would tie the program to lengths other than the table's
        return weight[..., torch.arange(count, device=weight.device)]
    return weight[..., :count]


def compress_reference(x: Tensor, weight: Tensor) -> Tensor:
    """The slots (slots, C) of tokens ``x`` (S, C) of one row by E (k, n >= S), one at a time."""
    return torch.stack([(row[: len(x), None] * x).sum(0) for row in weight])


def linformer_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition: q (..., L, D) read slots k, v (..., K, D) by softmax."""
    weights = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    return weights / weights.sum(-1, keepdim=True) @ v


def linformer_chunked(
    q: Tensor, k: Tensor, v: Tensor, slots: tuple[Tensor, Tensor], dropout: float = 0.0
) -> Tensor:
    """Queries of N segments over their own segment and the slots of earlier ones: (B, H, N, c, D).

    Args:
        q, k, v: (B, H, N, c, D). slots: keys and values (B, H, N, K, D) of every segment.
    """
    if leaves_torch() or q.shape[2] * q.shape[3] <= AT_ONCE:
        return _all_scores(q, k, v, slots, dropout)
    return _by_plan(q, k, v, slots, dropout)


def _all_scores(
    q: Tensor, k: Tensor, v: Tensor, slots: tuple[Tensor, Tensor], dropout: float
) -> Tensor:
    """`linformer_chunked` with all L (N K + c) scores at once."""
    segments, length = q.shape[2:4]
    wide = widened(q) / math.sqrt(q.shape[-1])
    keys, values = (t.flatten(2, 3).unsqueeze(2) for t in slots)
    segment = torch.arange(segments, device=q.device)
    past = segment.repeat_interleave(slots[0].shape[3])[None, :] < segment[:, None]
    far = (wide @ keys.to(wide.dtype).mT).masked_fill(~past[:, None], -math.inf)
    later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    own = (wide @ k.to(wide.dtype).mT).masked_fill(later, -math.inf)
    weights = drop(torch.cat((far, own), -1).softmax(-1), dropout).to(v.dtype)
    far, own = weights.split((keys.shape[3], length), -1)
    return far @ values + own @ v


def _by_plan(
    q: Tensor, k: Tensor, v: Tensor, slots: tuple[Tensor, Tensor], dropout: float
) -> Tensor:
    """`linformer_chunked` as the fixed pattern of a Sparse Transformer, without L x (N K) numbers.

    The slots of a segment stand after its tokens, so that of each c + K places the last K are
    columns that later segments see; what slots ask themselves is left out.
    """
    (segments, size), each = q.shape[2:4], slots[0].shape[3]
    period = size + each
    plan = SparsePlan.of(Blocks(size=period), Columns(period=period, first=size, last=period))
    # (B, N, c + K, H, D), as projections lie in memory
    of = [t.permute(0, 2, 3, 1, 4) for t in (q, k, v, *slots)]
    asked = F.pad(of[0], (0, 0, 0, 0, 0, each))
    keys, values = torch.cat((of[1], of[3]), 2), torch.cat((of[2], of[4]), 2)
    q, k, v = (t.flatten(1, 2).transpose(1, 2) for t in (asked, keys, values))
    y = sparse_attention(q, k, v, plan, scores=Scores(dropout=dropout))
    return y.unflatten(2, (segments, period))[:, :, :, :size]


@state
class OpenSegment(Growing):
    """The tokens of the segment that is being filled, n <= c; a row's token p is row p."""

    grows = ("inputs", "keys", "values")
    slot_dim = 1
    num_tokens: Tensor
    inputs: Tensor
    """(B, n, width)"""
    keys: Tensor
    """(B, n, H, D)"""
    values: Tensor
    """(B, n, H, D)"""

    def first(self, count: int) -> Self:
        """The first ``count`` tokens alone."""
        parts = {name: getattr(self, name)[:, :count] for name in self.grows}
        short = replace(self, **parts)
        return short if self.room is None else short.reserve(self.inputs.shape[1])


@state
class LinformerState(Growing):
    """Slots of the completed segments, and the one that is being filled.

    Row b has K floor(seen / c) slots, and seen mod c tokens; later ones are not read.
    """

    grows = ("slot_keys", "slot_values")
    slot_dim = 2
    num_tokens: Tensor
    slot_keys: Tensor
    """(B, H, T, D)"""
    slot_values: Tensor
    """(B, H, T, D)"""
    segment: OpenSegment

    def with_slots(self, new: tuple[Tensor, Tensor], size: int) -> Self:
        """Keys and values ``new`` (B, H, K, D) of a segment of ``size`` after those of each row."""
        each = new[0].shape[2]
        first = self.num_tokens // size * each
        if surely(first == self.slot_keys.shape[2]):
            (keys, values), room = self.grown(*new)
            return replace(self, slot_keys=keys, slot_values=values).in_room(room)
        at = first[:, None] + torch.arange(each, device=first.device)
        keys, values = (
            _written(old.transpose(1, 2), t.transpose(1, 2), at, old.shape[2]).transpose(1, 2)
            for old, t in zip((self.slot_keys, self.slot_values), new, strict=True)
        )
        after = replace(self, slot_keys=keys, slot_values=values)
        return after if self.room is None else after.reserve(each)


def advanced(
    x: Tensor, heads: tuple[Tensor, Tensor, Tensor], padding_mask: Tensor | None,
    state: LinformerState,
    slots_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], size: int, each: int,
    dropout: float,
) -> tuple[Tensor, LinformerState]:  # fmt: skip
    """Outputs of new tokens after a state, at most c of them, so that a row fills one segment.

    Args:
        x: (B, L, width). heads: their queries, keys and values (B, H, L, D).
        keep: (B, L) bool, a prefix of True in every row; the rest of ``x`` is zero.
        slots_of: keys and values (B, H, K, D) of whole segments (B, c, width). size: c. each: K.

    Returns:
        outputs of the heads (B, H, L, D), and the state after the real tokens.
    """
    place = common(state.num_tokens) if x.shape[1] == 1 and padding_mask is None else None
    if place is not None:
        return _one_more(x, heads, state, slots_of, size, each, place, dropout)
    (q, k, v), length = heads, x.shape[1]
    count = (
        torch.full_like(state.num_tokens, length) if padding_mask is None else padding_mask.sum(1)
    )
    filled = state.num_tokens % size
    position = filled[:, None] + torch.arange(length, device=x.device)
    new = {"inputs": x, "keys": k.transpose(1, 2), "values": v.transpose(1, 2)}
    both = {
        name: _written(getattr(state.segment, name), t, position, size) for name, t in new.items()
    }
    full = filled + count >= size
    if not readable(full) or bool(full.any()):
        # a compiled step cannot ask, so it makes room at every call
        segment = both["inputs"][:, :size]
        state = state.with_slots(slots_of(segment, segment), size)
    slots = torch.arange(size + length, device=x.device)
    own = (slots <= position[..., None]) & (slots // size == position[..., None] // size)
    segment_of = (state.num_tokens // size)[:, None] + position // size
    count_of_slots = state.slot_keys.shape[2]
    past = torch.arange(count_of_slots, device=x.device) // each < segment_of[..., None]
    # the segment lies after the slots while it is read, since another cat would copy them all
    own_heads = (both[name].transpose(1, 2) for name in ("keys", "values"))
    (keys, values), room = state.grown(*own_heads, stay=False)
    visible = Visibility(mask=torch.cat((past, own), -1)[:, None])
    y = softmax_attention(q, keys, values, visible, dropout=dropout)
    index = full[:, None] * size + torch.arange(size, device=x.device)
    index = index.clamp(max=size + length - 1)
    after = {name: gather_rows(t, index) for name, t in both.items()}
    num_tokens = counted_on(state.num_tokens, length, padding_mask)
    rest = OpenSegment(num_tokens, **after)
    rest = rest if room is None else rest.reserve(size)
    return y, replace(state, num_tokens=num_tokens, segment=rest).in_room(room)


def _one_more(
    x: Tensor, heads: tuple[Tensor, Tensor, Tensor], state: LinformerState,
    slots_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], size: int, each: int, place: int,
    dropout: float,
) -> tuple[Tensor, LinformerState]:  # fmt: skip
    """`advanced` by one token of rows that have all read ``place``: nothing is hidden from it."""
    q, k, v = heads
    filled, slots = place % size, place // size * each
    segment, num_tokens = state.segment, counted_on(state.num_tokens, 1)
    if segment.inputs.shape[1] > filled:
        segment = segment.first(filled)
    parts, in_segment = segment.grown(x, k.transpose(1, 2), v.transpose(1, 2))
    segment = OpenSegment(num_tokens, *parts).in_room(in_segment)
    if state.slot_keys.shape[2] > slots:
        cut = {name: getattr(state, name)[:, :, :slots] for name in state.grows}
        state = replace(state, **cut)
    own = segment.keys.transpose(1, 2), segment.values.transpose(1, 2)
    # it lies after the slots while it is read, since another cat would copy them all
    (keys, values), room = state.grown(*own, stay=False)
    y = softmax_attention(q, keys, values, Visibility(), dropout=dropout)
    state = state.in_room(room)
    if filled + 1 == size:
        state = state.with_slots(slots_of(segment.inputs, segment.inputs), size)
        segment, room = segment.first(0), state.room
    return y, replace(state, num_tokens=num_tokens, segment=segment).in_room(room)


def _written(stored: Tensor, new: Tensor, at: Tensor, size: int) -> Tensor:
    """``stored`` (B, n, ...) in ``size`` slots and room for L more, with ``new`` (B, L, ...) at
    ``at`` (B, L)."""
    more = size + new.shape[1] - stored.shape[1]
    longer = F.pad(stored, (*[0, 0] * (stored.dim() - 2), 0, more))
    wide = at.view(*at.shape, *[1] * (new.dim() - 2)).expand_as(new)
    return longer.scatter(1, wide, new.to(stored.dtype))
