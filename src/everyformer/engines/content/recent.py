"""Attention to the latest members of a token's own cluster, token by token.

What is held are the last w members of every cluster, in rings of R >= w slots: the n-th member
lies at n mod R. A step reads and writes one ring alone. Where room was reserved it writes in
place, into one of the R - w slots that no earlier state shows any more, and makes new rings when
those are used up; else it writes into a copy.

Letters as in `everyformer.engines.content.clustered`, whose `latest` this is for tokens that follow
a state.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.shared import advanced, shared
from everyformer.core.state import State, state
from everyformer.engines.content.clustered import HeadInputs, attended, gathered, latest
from everyformer.engines.content.hashing import bucket_order


class _Room:
    """Rings for one state and those that follow it, with so many ``free`` slots in each."""

    def __init__(self, free: int) -> None:
        self.free, self.inference = free, torch.is_inference_mode_enabled()


@state
class Recent(State):
    """The latest members of every cluster."""

    num_tokens: Tensor
    members: Tensor
    """(B, H, K, R, 2 D), keys and after them values"""
    count: Tensor
    """(B, H, K) int64: how many members there were, less R as often as R at least are left"""

    @classmethod
    def empty(cls, rows: tuple[int, int, int], size: int, **like: Any) -> Recent:
        """Clusters without members, for ``rows`` = (batch, heads, clusters)."""
        device = like.get("device")
        none = torch.zeros(rows, dtype=torch.long, device=device)
        members = torch.zeros(*rows, 0, 2 * size, **like)
        return cls(none.new_zeros(rows[0]), members, none)

    def reserve(self, tokens: int) -> Self:
        """The same state; steps after it write in place, into rings that the first one makes."""
        return State.reserve(self, tokens).following(_Room(0))

    def in_order(self, window: int) -> tuple[Tensor, Tensor]:
        """The last ``window`` - 1 members (B, H, K, W, 2 D) of every cluster, the earliest first,
        and how many there are (B, H, K)."""
        count = self.count.clamp(max=window - 1)
        first = (self.count - count)[..., None]
        slots = torch.arange(window - 1, device=first.device)
        at = ((first + slots) % self.members.shape[3])[..., None]
        return self.members.gather(3, at.expand(*at.shape[:4], self.members.shape[4])), count

    def reserved_as(self, other: Recent) -> Self:
        """This state, reserved if ``other`` is."""
        return self if other.room is None else self.reserve(1)

    def following(self, room: _Room) -> Self:
        """This state, whose rings have as many free slots as there are in ``room`` now."""
        # beside the fields: what makes new states (map, tree_map) rightly loses it
        object.__setattr__(self, "_room", (room, room.free))
        return self

    @property
    def room(self) -> tuple[_Room, int] | None:
        """Rings that steps write to in place, and the slots that were free in this state."""
        return getattr(self, "_room", None)

    def writable(self, window: int) -> tuple[Self, _Room | None]:
        """This state, in new rings if its own have no free slot, one of which is taken for a token;
        and the room that they are in, None where a copy is to be written."""
        if self.room is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self, None
        room, free = self.room
        if room.free != free or not free or room.inference != torch.is_inference_mode_enabled():
            members, count = self.in_order(window)
            members = F.pad(members, (0, 0, 0, window + 1))
            self, room = replace(self, members=members, count=count), _Room(window)
        room.free -= 1
        return self, room


def latest_next(
    heads: HeadInputs, labels: Tensor, window: int, state: Recent, *,
    padding_mask: Tensor | None = None, dropout: float = 0.0,
) -> tuple[Tensor, Recent]:  # fmt: skip
    """`latest` of tokens that follow those of ``state``, and the state after them.

    Args:
        labels: (B, H, L) below the number of clusters. keep: (B, L) bool, which tokens are real.
    """
    more = window - state.members.shape[3]
    if more > 0:
        state = replace(state, members=F.pad(state.members, (0, 0, 0, more))).reserved_as(state)
    if heads.q.shape[2] == 1:
        return _latest_one(heads, labels, window, state, padding_mask, dropout)
    clusters = state.members.shape[2]
    members, count = state.in_order(window)
    before = torch.arange(clusters, device=labels.device)[:, None].expand(members.shape[:4])
    filled = torch.arange(window - 1, device=labels.device) < count[..., None]
    before = torch.where(filled, before, clusters).flatten(2)
    if padding_mask is not None:
        labels = labels.masked_fill(~padding_mask[:, None], clusters)
    labels = torch.cat((before, labels), 2)
    old = members.flatten(2, 3).chunk(2, -1)
    k, v = (torch.cat((t.to(new.dtype), new), 2) for t, new in zip(old, heads[1:], strict=True))
    q = F.pad(heads.q, (0, 0, before.shape[2], 0))
    y = latest(HeadInputs(q, k, v), labels, window, clusters, dropout=dropout)
    seen = advanced(state.num_tokens, heads.q.shape[2], padding_mask)
    members, count = _last_of(torch.cat((k, v), -1), labels, window, clusters)
    after = Recent(seen, members.to(state.members.dtype), count).reserved_as(state)
    return y[:, :, before.shape[2] :], after


def _latest_one(
    heads: HeadInputs, labels: Tensor, window: int, state: Recent, padding_mask: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Recent]:  # fmt: skip
    """One token more, at the cost of one cluster."""
    state, room = state.writable(window)
    members, (clusters, slots, size) = state.members, state.members.shape[2:]
    count = state.count.gather(2, labels)
    row, slot, more = shared(_steps, slots, count.device)[count].unbind(-1)
    new = torch.cat(heads[1:], -1).to(members.dtype)
    at = torch.add(slot, labels, alpha=slots)[..., None].expand(new.shape)
    flat = members.flatten(2, 3)
    flat = flat.scatter(2, at, new) if room is None else flat.scatter_(2, at, new)
    members = flat.unflatten(2, (clusters, slots))
    own = labels[..., None, None].expand(-1, -1, -1, slots, size)
    k, v = members.gather(2, own).squeeze(2).to(heads.q.dtype).chunk(2, -1)
    added = shared(_added, slots, window, heads.q.dtype, count.device)
    y = attended(heads.q, k, v, added[row], dropout)
    if padding_mask is not None:
        more = torch.where(padding_mask[:, None], more, count)
    after = Recent(
        advanced(state.num_tokens, 1, padding_mask), members, state.count.scatter(2, labels, more)
    )
    return y, after if room is None else after.following(room)


def _steps(slots: int, device: torch.device) -> Tensor:
    """Of each count of members (2 R,): the row of `_added`, the next one's slot, the next count."""
    count = torch.arange(2 * slots, device=device)
    after = count + 1
    after[-1] = slots
    return torch.stack((count.flip(0), count % slots, after), -1)


def _added(slots: int, window: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Addends (2 R, R) of a query's scores of all slots, -inf where it sees none; the row of a
    query after n members is 2 R - 1 - n."""
    apart = torch.arange(2 * slots - 1, -slots, -1, device=device)
    lag = apart % slots
    mask = (lag < window) & (apart >= 0)
    added = torch.zeros(len(lag), device=device).masked_fill(~mask, -math.inf)
    return added.to(dtype).unfold(0, slots, 1)


def _last_of(members: Tensor, labels: Tensor, window: int, clusters: int) -> tuple[Tensor, Tensor]:
    """The last ``window`` - 1 ``members`` (B, H, L, 2 D) of every label, and how many."""
    order = bucket_order(labels.flatten(0, 1)).view(labels.shape)
    ordered = labels.gather(2, order)
    each = torch.arange(clusters, device=order.device).expand(*labels.shape[:2], -1).contiguous()
    first, last = (torch.searchsorted(ordered, each, right=right) for right in (False, True))
    count = (last - first).clamp(max=window - 1)
    at = (last - count)[..., None] + torch.arange(window, device=order.device)
    at = order.gather(2, at.clamp(max=order.shape[2] - 1).flatten(2))
    return gathered(members, at).unflatten(2, (clusters, window)), count
