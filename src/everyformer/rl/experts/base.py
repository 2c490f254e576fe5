"""`Expert`: how an environment is solved, as a record; and a policy that does not remember."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.rl.policy import Draw, Policy


@dataclass(frozen=True)
class Expert:
    """The policy that solves an environment, in words and as code."""

    what: str
    """the policy does, in a few words"""
    build: Callable[[Any], Policy]
    """the policy, from the environment without wrappers"""
    medium: float
    """probability of a random action at which about half of what the expert has over a random
    policy is left"""
    walk: Callable[[Any], Draw] | None = None
    """a random action, from the environment, where drawing all alike is not one"""
    walks: str = "uniformly random actions"
    """what those are, in words"""


class Reflex(Policy):
    """Actions by a function of the observations (N, ...) alone."""

    unmasked = True

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self._function = function

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        """There is nothing to forget."""

    def act(self, observations: np.ndarray) -> np.ndarray:
        return self._function(observations)
