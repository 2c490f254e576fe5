"""`HiddenEntries`: an environment whose observations lack some of their numbers.

CartPole without entries 1 and 3 shows positions and angles and no velocities, so that a policy has
to remember or to guess.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from everyformer.core.errors import ConfigError
from everyformer.core.wording import few


class HiddenEntries(
    gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray], gymnasium.utils.RecordConstructorArgs
):
    """Leaves ``mask``, indices counted from 0, out of observations that are vectors.

    Raises:
        ConfigError: an index that is not there, nothing left, or observations of another form.
    """

    def __init__(self, env: gymnasium.Env[np.ndarray, Any], mask: Sequence[int]) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(self, mask=list(mask))
        super().__init__(env)
        space = env.observation_space
        name = "the environment" if env.spec is None else env.spec.id
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"--env.mask hides numbers of vectors, but the observations of {name} are {space}: "
                "leave --env.mask out"
            )
        (size,) = space.shape
        if absent := [str(index) for index in mask if not 0 <= index < size]:
            raise ConfigError(
                f"--env.mask {few(absent)} is not an entry of the observations of {name}, which "
                f"have {size}: give indices from 0 to {size - 1}"
            )
        self.visible = np.setdiff1d(np.arange(size), mask)
        """indices of the entries that are seen"""
        if not len(self.visible):
            raise ConfigError(
                f"--env.mask hides all {size} entries of the observations of {name}: leave one"
            )
        self.observation_space = gymnasium.spaces.Box(
            space.low[self.visible], space.high[self.visible], dtype=space.dtype.type
        )

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self.visible]
