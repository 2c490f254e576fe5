"""States that grow by a slot a token, and take tokens in without a copy of what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from everyformer.core.state import State


class Room:
    """Spare slots after the tensors of one state, for the states that follow it.

    A state shows the first slots alone, so writing after them changes nothing for it.
    ``used`` says how many slots are taken: a second continuation of the same state finds them
    taken and copies instead.

    Args:
        parts: tensors (B, ..., S, ...) with as many slots each. dim: of the slots.
        used: slots that are taken, the first.
    """

    def __init__(self, parts: Sequence[Tensor], dim: int, used: int) -> None:
        self.parts, self.dim, self.used = [*parts], dim, used
        self.capacity = parts[0].shape[dim]

    @classmethod
    def around(cls, parts: Sequence[Tensor], dim: int, capacity: int) -> Room:
        """Room with a copy of ``parts`` in its first slots."""
        slots, used = list[Tensor](), parts[0].shape[dim]
        for part in parts:
            shape = [*part.shape]
            shape[dim] = capacity
            slots.append(part.new_empty(shape))
            slots[-1].narrow(dim, 0, used).copy_(part)
        return cls(slots, dim, used)

    def first(self, count: int) -> list[Tensor]:
        """The first slots of each part."""
        return [part.narrow(self.dim, 0, count) for part in self.parts]

    def fits(self, rows: int, used: int, more: int) -> bool:
        """True where the slots after ``used`` are free, enough, and may be written."""
        first = self.parts[0]
        free = self.used == used and used + more <= self.capacity and first.shape[0] == rows
        # a graph is made for one mode or the other, and cannot ask
        compiling = torch.compiler.is_compiling()
        return free and (compiling or first.is_inference() == torch.is_inference_mode_enabled())

    def write(self, new: Sequence[Tensor], stay: bool) -> list[Tensor]:
        """The tensors with ``new`` ones after them, whose slots are taken if they ``stay``."""
        more, used = new[0].shape[self.dim], self.used
        for part, tokens in zip(self.parts, new, strict=True):
            part.narrow(self.dim, used, more).copy_(tokens)
        self.used += more if stay else 0
        return self.first(used + more)


class Growing(State):
    """Base of states whose fields `grows` hold a slot for each token, along `slot_dim`."""

    grows: ClassVar[tuple[str, ...]]
    slot_dim: ClassVar[int]

    def grown(self, *new: Tensor, stay: bool = True) -> tuple[list[Tensor], Room | None]:
        """The parts that `grows` names with ``new`` tokens after them, in the state's dtypes, and
        the room that these lie in, which `in_room` gives to the state that holds them.

        What does not ``stay`` is there until something else is written.
        """
        old = [getattr(self, name) for name in self.grows]
        new = tuple(tokens.to(part.dtype) for tokens, part in zip(new, old, strict=True))
        room = self._room_for(old, new[0])
        if room is not None:
            return room.write(new, stay), room
        pairs = zip(old, new, strict=True)
        return [torch.cat(both, self.slot_dim) for both in pairs], None

    def in_room(self, room: Room | None) -> Self:
        """This state, which goes on in ``room``."""
        # beside the fields: what makes new states (map, tree_map) rightly loses it
        object.__setattr__(self, "_room", room)
        return self

    @property
    def room(self) -> Room | None:
        """Room that was reserved for what comes."""
        return getattr(self, "_room", None)

    @property
    def taken(self) -> int:
        """Slots that are taken."""
        part: Tensor = getattr(self, self.grows[0])
        return part.shape[self.slot_dim]

    def has_room(self, tokens: int) -> bool:
        """True where ``tokens`` more can be taken in without a copy of what is there."""
        return self.room is not None and self.room.fits(
            self.num_tokens.shape[0], self.taken, tokens
        )

    def reserve(self, tokens: int) -> Self:
        """Ready to take in ``tokens`` more without a copy of all that is there each time."""
        parts = [getattr(self, name) for name in self.grows]
        room = Room.around(parts, self.slot_dim, self.taken + tokens)
        return State.reserve(self, tokens).in_room(room)

    def _room_for(self, old: Sequence[Tensor], new: Tensor) -> Room | None:
        """The room where ``new`` may be written, if one was reserved; a full one is doubled."""
        room = self.room
        if room is None or torch.is_grad_enabled() or room.parts[0].shape[0] != new.shape[0]:
            return None
        used, more = self.taken, new.shape[self.slot_dim]
        fits = room.fits(new.shape[0], used, more)
        return room if fits else Room.around(old, self.slot_dim, 2 * (used + more))
