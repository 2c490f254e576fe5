"""Steps of one token, compiled: a program at work (`everyformer.generation.programs`)."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from everyformer.core.errors import UnsupportedError
from everyformer.core.state import StackState, in_step, innermost
from everyformer.engines.growing import Growing, Room
from everyformer.generation.programs import (
    Layout,
    Program,
    described,
    folder,
    open_dims,
    program_of,
)
from everyformer.models.base import Model

ROOM = 64
"""tokens, at least, that a state is given room for"""
PATIENCE = 3
"""tokens, at most, that the model itself reads one after the other"""


class CompiledStep:
    """Tokens of ``model`` in evaluation, each by one call of a program, in inference mode.

    Args:
        state: what came before the first token.

    Raises:
        UnsupportedError: there is no C++ compiler here, it fails, or a step is no program.
    """

    def __init__(self, model: Model, state: StackState) -> None:
        self.model, self._state = model, state
        self._running: Running | None = None
        self._programs = dict[Path, Program]()
        self._whose, self._alone = described(model), 0

    @property
    def state(self) -> StackState:
        """State before the next token; another may be set."""
        return self._state if self._running is None else self._running.state()

    @state.setter
    def state(self, state: StackState) -> None:
        self._state, self._running = state, None

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (B, 1, V) behind the next ``token`` (B, 1)."""
        if self._running is None or not self._running.has_room():
            self.state = self.state
            self._running = self._begun()
        if self._running is not None:
            return self._running(token)
        out = self.model(token, state=self._state, last=1)
        self._state = out.state
        return cast(Tensor, out.logits)

    def _begun(self) -> Running | None:
        """A program at this state; None where the model itself reads the next token: the first
        ones, and those at which a state moves in memory, as a window does that is full."""
        state = in_step(self._state)
        taken = [part.taken for part in innermost(state) if isinstance(part, Growing)]
        # a graph takes lengths of 0 and 1 for numbers that never change
        if all(count > 1 for count in taken):
            for rooms in (True, False) if taken else (False,):
                running = self._at(state, rooms)
                if running is not None:
                    self._alone = 0
                    return running
        self._alone += 1
        if self._alone > PATIENCE:
            raise UnsupportedError(
                f"a step of {self.model.config.member} cannot be compiled, since its state changes "
                "in size from token to token: generate without compile"
            )
        return None

    def _at(self, state: StackState, rooms: bool) -> Running | None:
        """A program at a state that grows in its ``rooms``, or that does not grow."""
        growing = [part for part in innermost(state) if rooms and isinstance(part, Growing)]
        if not all(part.has_room(1) for part in growing):
            state = state.reserve(max(ROOM, *(part.taken for part in growing)))
        layout, fixed, growing = Layout.of(state, rooms)
        taken = [part.taken for part in growing]
        read = set(state.num_tokens.tolist())
        counted = next((n for n, t in enumerate(taken) if {t} == read), None)
        layout = layout._replace(opens=[open_dims(t, taken) for t in fixed], counted=counted)
        name = f"{self._whose} {layout.described(fixed, growing)} {torch.get_num_threads()} threads"
        file = folder() / hashlib.sha256(name.encode()).hexdigest()[:32]
        for number in itertools.count():
            part = Path(f"{file}-{number}.pt2")
            program = self._programs.get(part)
            program = program or program_of(self.model, layout, fixed, growing, part)
            if program is not None:
                self._programs[part] = program
            if program is None or program.serves(taken):
                break
        if program is None:
            return None
        return Running(program, layout, fixed, [cast(Room, p.room) for p in growing], taken)


class Running:
    """A program at work, and the tensors of the state that it is at."""

    def __init__(
        self, program: Program, layout: Layout, fixed: list[Tensor], rooms: list[Room],
        taken: list[int],
    ) -> None:  # fmt: skip
        self.program, self.fixed, self.rooms, self.taken = program, fixed, rooms, taken
        self.layout = layout
        self.slots = [slot for room in rooms for slot in room.parts]
        most = max((room.capacity for room in rooms), default=0)
        self.numbers = torch.arange(most, device=fixed[0].device)

    def has_room(self) -> bool:
        """Whether the next token has room that nobody else wrote into, and the program serves."""
        each = zip(self.rooms, self.taken, strict=True)
        return all(r.used == n < r.capacity for r, n in each) and self.program.serves(self.taken)

    def __call__(self, token: Tensor) -> Tensor:
        """Logits behind the next token."""
        each = {n: self.numbers[:n] for n in {*self.taken}}
        lengths = [each[n] for n in self.taken]
        logits, *self.fixed = self.program.run([token, *self.fixed, *self.slots, *lengths])
        for number, room in enumerate(self.rooms):
            room.used = self.taken[number] = room.used + 1
        return logits

    def state(self) -> StackState:
        """State before the next token."""
        return self.layout.filled(self.fixed, self.rooms, self.taken)
