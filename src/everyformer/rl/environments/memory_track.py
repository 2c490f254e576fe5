"""Proof of memory: a cue tells which end of a track is good, and is then hidden.

The rule. The agent stands on a track from -1 to 1, near its middle. One end is worth 1, the other
-1; the observation (left end, position, right end) shows which for the first ``cue_steps`` steps,
in which the agent cannot move, and 0 in place of both ends from then on. It moves left (action 0)
or right (action 1) by 0.2 a step. Every step costs 0.1 but the one that arrives at an end, which
ends the episode. After ``steps`` steps the episode is truncated.

What is seen after the cue does not depend on it, so that without a memory every policy is right
half of the time. The task is the "proof of concept" environment of several PPO code bases.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

from everyformer.core.bounds import Count
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError
from everyformer.rl.environments import canvas
from everyformer.rl.environments.base import CUE, MemoryTask

END = 5
"""cells from the middle of the track to an end, so that a step is 0.2"""
START = 2
"""cells from the middle, at most, at which an episode begins"""
COST = 0.1
CELL = 28


class MemoryTrack(MemoryTask[np.ndarray]):
    """``everyformer/MemoryTrack-v0``.

    Args:
        steps: an episode has at most; enough to reach the far end after the cue.
        cue_steps: first steps, at which the cue is seen and the agent cannot move.
    """

    metadata = {**MemoryTask.metadata, "reference_returns": (-1.3, 0.4)}  # noqa: RUF012

    def __init__(self, steps: int = 16, cue_steps: int = 2, render_mode: str | None = None) -> None:
        self.cue_steps = converted(Count, cue_steps, "--env.cue-steps")
        super().__init__(converted(Count, steps, "--env.steps"), render_mode)
        if steps < (least := cue_steps + START + END):
            raise ConfigError(
                f"'--env.steps'={steps} ends before the far end can be reached: give at least "
                f"{least}, which are {START + END} steps after the {cue_steps} of the cue"
            )
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.cell, self.good = 0, 1

    def begin(self) -> None:
        self.cell = int(self.np_random.integers(-START, START + 1))
        self.good = int(self.np_random.choice((-1, 1)))
        """where the good end is: -1 left, 1 right"""

    def move(self, action: int) -> tuple[float, bool]:
        if self.elapsed > self.cue_steps:
            self.cell += 1 if action else -1
        if abs(self.cell) < END:
            return -COST, False
        self.success = (self.cell > 0) == (self.good > 0)
        return (1.0 if self.success else -1.0), True

    @property
    def cue_is_seen(self) -> bool:
        return self.elapsed < self.cue_steps

    def notes(self) -> dict[str, Any]:
        return {CUE: self.cue_is_seen}

    def observe(self) -> np.ndarray:
        right = self.good if self.cue_is_seen else 0
        return np.array([-right, self.cell / END, right], np.float32)

    def draw(self) -> canvas.Canvas:
        width = 2 * END + 1
        picture = canvas.Canvas(3 * CELL, (width + 2) * CELL)
        for cell in range(width):
            picture.box(CELL + 1, (cell + 1) * CELL + 1, CELL - 2, CELL - 2, canvas.FLOOR)
        for side, column in ((-1, 1), (1, width)):
            worth = canvas.GOOD if side == self.good else canvas.BAD
            picture.box(CELL + 1, column * CELL + 1, CELL - 2, CELL - 2, worth)
            if self.cue_is_seen:
                picture.disc(CELL * 0.5, (column + 0.5) * CELL, CELL * 0.25, worth)
        picture.disc(1.5 * CELL, (self.cell + END + 1.5) * CELL, CELL * 0.33, canvas.AGENT)
        return picture
