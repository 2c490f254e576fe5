"""Key to door: what is done in the first of three rooms is paid at the end of the last.

The rule. Three rooms of ``size`` x ``size`` cells follow one another, each for a fixed number of
steps. In the first lies a key, which is taken by stepping on it. In the second lie apples, which
are taken likewise and are worth nothing. In the third is a door: who steps on it with the key gets
a reward of 1, and the episode ends; without the key nothing happens there. It ends with the last
step of the third room otherwise. No other step has a reward. The agent moves up, right, down or
left (actions 0 to 3), and stays where a wall is; in every room it begins at a random cell, with the
room's things at random cells elsewhere.

The observation holds seven numbers: which room it is (three bits), row and column of the agent,
row and column of the nearest thing, from 0 to 1; both are -1 where no thing is left. Whether the
key was taken is not seen in later rooms.

After Hung and others, "Optimizing agent behavior over long time scales by transporting value"
(2019), and the variant in "Decision Transformer" (Chen and others, 2021).
"""

import numpy as np
from gymnasium import spaces

from everyformer.core.bounds import Count, Several, Whole
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError
from everyformer.rl.environments import canvas
from everyformer.rl.environments.base import MemoryTask

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
KEY_ROOM, APPLE_ROOM, DOOR_ROOM = range(3)
CELL = 28
Cell = tuple[int, int]


class KeyToDoor(MemoryTask[np.ndarray]):
    """``everyformer/KeyToDoor-v0``.

    Args:
        size: rows and columns of a room.
        room_steps: steps in the room of the key and in that of the door.
        apple_steps: steps in the room between them, the delay of the reward.
        apples: that lie there.
    """

    metadata = {**MemoryTask.metadata, "reference_returns": (0.09, 1.0)}  # noqa: RUF012

    def __init__(
        self,
        size: int = 4,
        room_steps: int = 10,
        apple_steps: int = 10,
        apples: int = 4,
        render_mode: str | None = None,
    ) -> None:
        self.size = converted(Several, size, "--env.size")
        self.room_steps = converted(Count, room_steps, "--env.room-steps")
        self.apple_steps = converted(Count, apple_steps, "--env.apple-steps")
        self.apples = converted(Whole, apples, "--env.apples")
        if apples >= size * size:
            raise ConfigError(
                f"'--env.apples'={apples} do not fit into a room of {size} x {size} cells beside "
                f"the agent: give at most {size * size - 1}"
            )
        super().__init__(2 * self.room_steps + self.apple_steps, render_mode)
        self.observation_space = spaces.Box(-1, 1, (7,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.room, self.agent, self.has_key = KEY_ROOM, (0, 0), False
        self.things: list[Cell] = []

    def begin(self) -> None:
        counts = (1, self.apples, 1)
        rooms = [self._furnished(count) for count in counts]
        self._starts, self._things = zip(*rooms, strict=True)
        self.has_key = False
        self._enter(KEY_ROOM)

    def _furnished(self, count: int) -> tuple[Cell, list[Cell]]:
        """A cell for the agent and others for ``count`` things, all different."""
        numbers = self.np_random.choice(self.size**2, count + 1, replace=False)
        first, *others = ((int(n) // self.size, int(n) % self.size) for n in numbers)
        return first, others

    def _enter(self, room: int) -> None:
        self.room, self.agent = room, self._starts[room]
        self.things = list(self._things[room])

    def move(self, action: int) -> tuple[float, bool]:
        down, right = MOVES[action]
        row, column = self.agent[0] + down, self.agent[1] + right
        if 0 <= row < self.size and 0 <= column < self.size:
            self.agent = row, column
        if self.agent in self.things and self.room != DOOR_ROOM:
            self.things.remove(self.agent)
            self.has_key |= self.room == KEY_ROOM
        elif self.agent in self.things and self.has_key:
            self.success = True
            return 1.0, True
        if self.elapsed == self.room_steps:
            self._enter(APPLE_ROOM)
        elif self.elapsed == self.room_steps + self.apple_steps:
            self._enter(DOOR_ROOM)
        return 0.0, self.elapsed >= self.steps

    def observe(self) -> np.ndarray:
        observation = np.full(7, -1, np.float32)
        observation[:3] = np.arange(3) == self.room
        observation[3:5] = np.array(self.agent) / (self.size - 1)
        if self.things:
            row, column = self.agent
            nearest = min(self.things, key=lambda at: abs(at[0] - row) + abs(at[1] - column))
            observation[5:] = np.array(nearest) / (self.size - 1)
        return observation

    def draw(self) -> canvas.Canvas:
        """The three rooms beside one another; the present one is lit, and shows its things."""
        span = self.size * CELL
        picture = canvas.Canvas(span + CELL, 3 * span + 2 * CELL)
        picture.box(0, 0, span + CELL, 3 * span + 2 * CELL, canvas.WALL)
        for room in range(3):
            left = CELL / 2 + room * (span + CELL / 2)
            lit = room == self.room
            for row in range(self.size):
                for column in range(self.size):
                    y, x = CELL / 2 + row * CELL, left + column * CELL
                    colour = canvas.FLOOR if lit else canvas.FAINT
                    picture.box(y + 1, x + 1, CELL - 2, CELL - 2, colour)
                    if lit and (row, column) in self.things:
                        self._thing(picture, y, x)
                    if lit and (row, column) == self.agent:
                        picture.disc(y + CELL / 2, x + CELL / 2, CELL / 3, canvas.AGENT)
        if self.has_key:
            self._key(picture, 0, CELL / 4)
        return picture

    def _thing(self, picture: canvas.Canvas, y: float, x: float) -> None:
        if self.room == KEY_ROOM:
            self._key(picture, y + CELL / 4, x + CELL / 4)
        elif self.room == APPLE_ROOM:
            picture.disc(y + CELL / 2, x + CELL / 2, CELL / 5, canvas.BAD)
        else:
            picture.box(y + 4, x + 6, CELL - 4, CELL - 12, canvas.GOOD)

    def _key(self, picture: canvas.Canvas, y: float, x: float) -> None:
        """A ring, a shaft and two teeth, half a cell wide."""
        middle = y + CELL / 4
        picture.line((middle, x + 4), (middle, x + CELL / 2), 3, canvas.CUE)
        picture.line((middle, x + CELL / 2), (middle + 4, x + CELL / 2), 2, canvas.CUE)
        picture.line((middle, x + CELL / 2 - 4), (middle + 4, x + CELL / 2 - 4), 2, canvas.CUE)
        picture.disc(middle, x + 3, 4.5, canvas.CUE)
        picture.disc(middle, x + 3, 1.5, canvas.WALL)
