"""An environment that does in one call what a test says, and in all others what it should."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

SEEN = np.array([0.5, -0.5, 0.25], np.float32)
MOMENT = 3
"""the step of an episode that the test says"""


class Scripted(gymnasium.Env[np.ndarray, int]):
    """Three numbers, two actions, a reward of 1 a step.

    Args:
        length: steps of an episode; None: it never ends.
        begin: gives what `reset` does.
        move: gives what step `MOMENT` does.
        picture: gives what `render` does.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        length: int | None,
        begin: Callable[[], Any],
        move: Callable[[], Any],
        picture: Callable[[], Any],
        render_mode: str | None = None,
    ) -> None:
        self.length, self.begin, self.move, self.picture = length, begin, move, picture
        self.render_mode = render_mode
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.begin()

    def step(self, action: int) -> Any:
        self.count += 1
        if self.count == MOMENT and (said := self.move()) is not None:
            return said
        return SEEN, 1.0, self.count == self.length, False, {}

    def render(self) -> Any:
        return self.picture()


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    *,
    length: int | None = 5,
    begin: Callable[[], Any] = lambda: (SEEN, {}),
    move: Callable[[], Any] = lambda: None,
    picture: Callable[[], Any] = lambda: np.zeros((4, 4, 3), np.uint8),
    make: Callable[..., Any] = Scripted,
    **registered: Any,
) -> str:
    """Register one until the test has ended, and give its name."""
    entry = partial(make, length, begin, move, picture)
    entry.metadata = Scripted.metadata  # type: ignore[attr-defined]
    spec = gymnasium.envs.registration.EnvSpec("Scripted-v0", entry_point=entry, **registered)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    return spec.id


def failing(error: BaseException) -> Callable[..., Any]:
    """A call that raises."""

    def call(*given: Any, **named: Any) -> Any:
        raise error

    return call
