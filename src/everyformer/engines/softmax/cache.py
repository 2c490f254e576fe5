"""Keys and values that softmax attention has read: the growing state, and the context's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.core.chosen import gather_rows
from everyformer.core.state import S, State, state
from everyformer.engines.softmax.visibility import real_last


class Room:
    """Spare slots after the keys and values of one state, for the states that follow it.

    A state shows the first slots alone, so writing after them changes nothing for it.
    ``used`` says how many slots are taken: a second continuation of the same state finds them
    taken and copies instead.
    """

    def __init__(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        self.used = keys.shape[2]
        self.keys = keys.new_empty(*keys.shape[:2], capacity, keys.shape[3])
        self.values = values.new_empty(*values.shape[:2], capacity, values.shape[3])
        self.keys[:, :, : self.used] = keys
        self.values[:, :, : self.used] = values

    def fits(self, used: int, more: int) -> bool:
        """True where the slots after ``used`` are free, enough, and may be written."""
        free = self.used == used and used + more <= self.keys.shape[2]
        return free and self.keys.is_inference() == torch.is_inference_mode_enabled()

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values with (B, H_kv, L, ...) more."""
        more = k.shape[2]
        self.keys.narrow(2, self.used, more).copy_(k)
        self.values.narrow(2, self.used, more).copy_(v)
        self.used += more
        return self.keys.narrow(2, 0, self.used), self.values.narrow(2, 0, self.used)


@state
class KeyValueState(State):
    """Keys and values of the tokens seen. Padding keeps its slot, marked by ``keep``."""

    seen: Tensor
    keys: Tensor
    """(B, H_kv, S, D), already rotated where RoPE is in use"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    keep: Tensor | None = None
    """(B, S) bool, which slots hold a real token; None: all do, the last one at ``seen`` - 1"""
    positions: Tensor | None = None
    """(B, S) int64, absolute; None with ``keep``"""

    @classmethod
    def empty(
        cls, rows: tuple[int, int], key_dim: int, value_dim: int, **like: Any
    ) -> KeyValueState:
        """Empty cache of ``rows`` = (batch, key-value heads); ``like``: device and dtype."""
        return cls(
            seen=torch.zeros(rows[0], dtype=torch.long, device=like.get("device")),
            keys=torch.zeros(*rows, 0, key_dim, **like),
            values=torch.zeros(*rows, 0, value_dim, **like),
        )

    def append(
        self, k: Tensor, v: Tensor, positions: Tensor | None, keep: Tensor | None
    ) -> KeyValueState:
        """The cache with the keys and values (B, H_kv, L, ...) of new tokens after the old ones.

        ``positions`` (B or 1, L) are needed where there is a ``keep`` or was one before.
        """
        k, v = k.to(self.keys.dtype), v.to(self.values.dtype)
        room = self._room_for(k)
        if room is not None:
            keys, values = room.write(k, v)
        else:
            keys, values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        if keep is None and self.keep is None:
            new = KeyValueState(self.seen + k.shape[2], keys, values)
        else:
            assert positions is not None
            old_keep, old_positions = self.slots()
            if keep is None:
                keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
            new = KeyValueState(
                seen=self.seen + keep.sum(1),
                keys=keys,
                values=values,
                keep=torch.cat((old_keep, keep), 1),
                positions=torch.cat((old_positions, positions.expand(k.shape[0], -1)), 1),
            )
        new._set_room(room)
        return new

    def slots(self) -> tuple[Tensor, Tensor]:
        """``keep`` and ``positions``, built where they are None."""
        if self.keep is not None and self.positions is not None:
            return self.keep, self.positions
        batch, _, size, _ = self.keys.shape
        keep = torch.ones(batch, size, dtype=torch.bool, device=self.keys.device)
        return keep, self.seen[:, None] - size + torch.arange(size, device=self.keys.device)

    def last(self, count: int | None) -> KeyValueState:
        """Only the last ``count`` real tokens of each row (None: all)."""
        size = self.keys.shape[2]
        if count is None or size <= count:
            return self
        if self.keep is None:
            first = size - count
            return KeyValueState(self.seen, self.keys[:, :, first:], self.values[:, :, first:])
        if real_last(self.keep):
            # as in a stream of steps, after any resets
            return self.part(size - count)
        return self._picked(self._real_last()[:, size - count :])

    def side_by_side(self) -> KeyValueState:
        """The cache with the real tokens of each row after all other slots, side by side."""
        if self.keep is None:
            return self
        return self._picked(self._real_last())

    def _real_last(self) -> Tensor:
        """The slots (B, S) of each row, those that hold nothing first."""
        return torch.argsort(self.slots()[0].to(torch.uint8), dim=1, stable=True)

    def _picked(self, order: Tensor) -> KeyValueState:
        """The slots at ``order`` (B, n) alone."""
        keep, positions = self.slots()
        return KeyValueState(
            seen=self.seen,
            keys=gather_rows(self.keys.transpose(1, 2), order).transpose(1, 2),
            values=gather_rows(self.values.transpose(1, 2), order).transpose(1, 2),
            keep=keep.gather(1, order),
            positions=positions.gather(1, order),
        )

    def last_of_many(self, count: int, spare: int) -> KeyValueState:
        """`last`, but only where more than ``spare`` others are there, since it copies."""
        if self.keys.shape[2] <= count + spare:
            return self
        new = self.last(count)
        return new if getattr(self, "_room", None) is None else new.reserve(spare + count // 8)

    def part(self, first: int) -> KeyValueState:
        """The slots from ``first`` on."""
        keep = None if self.keep is None else self.keep[:, first:]
        positions = None if self.positions is None else self.positions[:, first:]
        keys, values = self.keys[:, :, first:], self.values[:, :, first:]
        return KeyValueState(self.seen, keys, values, keep, positions)

    def at(self, index: Tensor) -> KeyValueState:
        """The slots at ``index`` (N,) alone."""
        keep, positions = self.slots()
        keys, values = (t.index_select(2, index) for t in (self.keys, self.values))
        return KeyValueState(self.seen, keys, values, keep[:, index], positions[:, index])

    def only(self, visible: Tensor) -> KeyValueState:
        """The cache, in which slots that ``visible`` (B, S) leaves out are marked as empty."""
        keep, positions = self.slots()
        return KeyValueState(self.seen, self.keys, self.values, keep & visible, positions)

    def reset(self, where: Tensor) -> KeyValueState:
        keep, positions = self.slots()
        explicit = KeyValueState(self.seen, self.keys, self.values, keep, positions)
        return State.reset(explicit, where)

    def reserve(self, tokens: int) -> KeyValueState:
        """Ready to take in ``tokens`` more without a copy of all that is there each time."""
        new = KeyValueState(self.seen, self.keys, self.values, self.keep, self.positions)
        new._set_room(Room(self.keys, self.values, self.keys.shape[2] + tokens))
        return new

    def _room_for(self, k: Tensor) -> Room | None:
        """The room where ``k`` may be written, if one was reserved; a full one is doubled."""
        room: Room | None = getattr(self, "_room", None)
        if room is None or torch.is_grad_enabled() or room.keys.shape[0] != k.shape[0]:
            return None
        used, more = self.keys.shape[2], k.shape[2]
        return room if room.fits(used, more) else Room(self.keys, self.values, 2 * (used + more))

    def _set_room(self, room: Room | None) -> None:
        # beside the fields: what makes states anew (map, tree_map) rightly loses it
        object.__setattr__(self, "_room", room)


@state
class ContextState(State):
    """Keys and values of a context, projected once and read by every step of cross-attention."""

    of_context = True
    seen: Tensor
    keys: Tensor
    """(B, H_kv, S, D)"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    keep: Tensor
    """(B, S) bool"""


def freed(carried: S) -> S:
    """A state without the slots of keys and values that none of its rows holds any more.

    Rows that are reset leave theirs behind, so that one episode after the other would need room for
    all. Not for states that hold something else by slot (Reformer's buckets, memories).
    """
    if isinstance(carried, KeyValueState):
        return carried.last(int(carried.slots()[0].sum(1).max()))  # type: ignore[return-value]
    return carried.rebuilt(lambda t, _: t, freed)
