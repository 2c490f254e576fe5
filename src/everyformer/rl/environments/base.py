"""`MemoryTask`: base of the environments in this folder, from counting steps to a picture."""

from abc import abstractmethod
from typing import Any, Generic, TypeVar, final

import gymnasium
import numpy as np

from everyformer.core.errors import ConfigError
from everyformer.rl.environments.canvas import Canvas

Observation = TypeVar("Observation")
CUE = "cue"
"""the entry of ``info`` by which an environment tells that what is to be remembered is seen now"""


class MemoryTask(gymnasium.Env[Observation, Any], Generic[Observation]):
    """Base of environments with numbered actions that end after ``steps`` steps at the latest.

    Random numbers are drawn in `begin` alone, so an episode follows from its seed and its actions.
    ``info["success"]`` tells at every step whether the task has been solved, and
    ``metadata["reference_returns"]`` the mean returns of random actions and of the expert with the
    usual options, by which others may be normalised.

    Args:
        steps: an episode has at most; it is truncated there if `move` has not ended it.
        render_mode: ``"rgb_array"``, or None for no pictures.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, steps: int, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"the render mode must be 'rgb_array' or None, not {render_mode!r}")
        self.steps = steps
        self.render_mode = render_mode
        self.elapsed = 0
        """steps since the episode began"""
        self.success = False

    @abstractmethod
    def begin(self) -> None:
        """Set the state in which an episode begins, drawing from ``np_random``."""

    @abstractmethod
    def move(self, action: int) -> tuple[float, bool]:
        """Change the state; give the reward and whether the task has ended."""

    @abstractmethod
    def observe(self) -> Observation:
        """Observation of the state, in memory of its own."""

    @abstractmethod
    def draw(self) -> Canvas:
        """A picture of the state."""

    def notes(self) -> dict[str, Any]:
        """Entries of ``info`` beside ``success``, in memory of their own."""
        return {}

    @final
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.elapsed, self.success = 0, False
        self.begin()
        return self.observe(), {"success": self.success, **self.notes()}

    @final
    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ConfigError(f"an action of {self.action_space} is needed, not {action!r}")
        self.elapsed += 1
        reward, ended = self.move(int(action))
        late = not ended and self.elapsed >= self.steps
        return self.observe(), reward, ended, late, {"success": self.success, **self.notes()}

    @final
    def render(self) -> np.ndarray | None:
        """The picture as (height, width, 3) bytes; None without a render mode."""
        return None if self.render_mode is None else self.draw().pixels()
