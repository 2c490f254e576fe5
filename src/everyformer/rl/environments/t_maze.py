"""T-maze: a cue at the start of a corridor tells which way to turn at its end.

The rule. The agent begins at the left of a corridor, ``length`` steps from the junction, and moves
up, right, down or left (actions 0 to 3). The observation holds three bits: the reward is above; it
is below; this is the junction. One of the first two is set in the first observation, and neither
ever again. A turn at the junction ends the episode, with a reward of 4 on the announced side and
-0.1 on the other. A move against a wall costs 0.1 and leads nowhere; other moves cost nothing.
After 4 x (``length`` + 1) steps the episode is truncated.

After Bakker, "Reinforcement Learning with Long Short-Term Memory" (2001). The best return is 4; a
policy without memory turns right half of the time.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from everyformer.core.bounds import Count
from everyformer.core.config import converted
from everyformer.rl.environments import canvas
from everyformer.rl.environments.base import CUE, MemoryTask

UP, RIGHT, DOWN, LEFT = range(4)
REWARD, COST = 4.0, 0.1
SLACK = 4
"""times the steps of the shortest way after which an episode is truncated"""
CELL = 24


class TMaze(MemoryTask[np.ndarray]):
    """``everyformer/TMaze-v0``.

    Args:
        length: steps from the cue to the junction.
    """

    metadata = {**MemoryTask.metadata, "reference_returns": (-2.47, 4.0)}  # noqa: RUF012

    def __init__(self, length: int = 10, render_mode: str | None = None) -> None:
        self.length = converted(Count, length, "--env.length")
        super().__init__(SLACK * (self.length + 1), render_mode)
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.column, self.turn, self.taken = 0, UP, RIGHT

    def begin(self) -> None:
        self.column, self.taken = 0, RIGHT
        self.turn = (UP, DOWN)[self.np_random.integers(2)]
        """the announced side"""

    def move(self, action: int) -> tuple[float, bool]:
        if self.column == self.length and action in (UP, DOWN):
            self.taken = action
            self.success = action == self.turn
            return (REWARD if self.success else -COST), True
        before = self.column
        step = {LEFT: -1, RIGHT: 1}.get(action, 0)
        self.column = min(max(before + step, 0), self.length)
        return (-COST if self.column == before else 0.0), False

    @property
    def cue_is_seen(self) -> bool:
        return self.elapsed == 0

    def notes(self) -> dict[str, Any]:
        return {CUE: self.cue_is_seen}

    def observe(self) -> np.ndarray:
        cue = self.cue_is_seen
        bits = (cue and self.turn == UP, cue and self.turn == DOWN, self.column == self.length)
        return np.array(bits, np.float32)

    def draw(self) -> canvas.Canvas:
        picture = canvas.Canvas(5 * CELL, (self.length + 3) * CELL)
        picture.box(0, 0, 5 * CELL, (self.length + 3) * CELL, canvas.WALL)
        for column in range(self.length + 1):
            self._fill(picture, 2, column, canvas.FLOOR)
        self._fill(picture, 1, self.length, canvas.GOOD if self.turn == UP else canvas.BAD)
        self._fill(picture, 3, self.length, canvas.GOOD if self.turn == DOWN else canvas.BAD)
        if self.cue_is_seen:
            picture.disc((1.5 if self.turn == UP else 3.5) * CELL, 1.5 * CELL, 6, canvas.CUE)
        row = 2 + {UP: -1, DOWN: 1}.get(self.taken, 0)
        picture.disc((row + 0.5) * CELL, (self.column + 1.5) * CELL, CELL / 3, canvas.AGENT)
        return picture

    def _fill(self, picture: canvas.Canvas, row: int, column: int, colour: canvas.Colour) -> None:
        picture.box(row * CELL + 1, (column + 1) * CELL + 1, CELL - 2, CELL - 2, colour)
