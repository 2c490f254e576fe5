"""Experts: policies that solve an environment by knowing how it works, without learning.

In classic control a pole is caught by a linear rule, and the rest swings up: what swings gains
energy from a force along its motion; that is all that MountainCar and Acrobot need. Pendulum is
pumped to the energy that it has upright, and held there by a linear rule. The experts of our own
environments are exact: none can have a better return.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from everyformer.rl.policy import Draw, Policy

PUSH = 0.5
"""force on the continuous car: enough, and squared it is paid for"""
CATCH = 0.6
"""radians from upright within which the linear rule acts"""
PUMP, STIFFNESS, DAMPING = 3.0, 15.0, 3.0
TORQUE = 2.0
"""the largest of Pendulum"""
UP, RIGHT, DOWN, LEFT = range(4)


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


def cart_pole(observations: np.ndarray) -> np.ndarray:
    """Push to the side on which the pole is, or will be half a second on."""
    angle, velocity = observations[:, 2], observations[:, 3]
    return (angle + 0.5 * velocity > 0).astype(np.int64)


def mountain_car(observations: np.ndarray) -> np.ndarray:
    """Push along the motion."""
    return np.where(observations[:, 1] >= 0, 2, 0)


def mountain_car_continuous(observations: np.ndarray) -> np.ndarray:
    """Push along the motion, gently."""
    return np.where(observations[:, 1:] >= 0, PUSH, -PUSH)


def acrobot(observations: np.ndarray) -> np.ndarray:
    """Turn the joint the way the lower link swings, less some of how the upper one does."""
    return np.where(observations[:, 5] - 0.3 * observations[:, 4] >= 0, 2, 0)


def pendulum(observations: np.ndarray, gravity: float) -> np.ndarray:
    """Bring the energy to that of standing upright at rest, which is 0 here; then balance. Mass and
    length are 1."""
    cosine, sine, velocity = observations.T
    angle = np.arctan2(sine, cosine)
    energy = velocity**2 / 6 + gravity / 2 * (cosine - 1)
    swing = -PUMP * energy * np.where(velocity >= 0, 1, -1)
    balance = -STIFFNESS * angle - DAMPING * velocity
    torque = np.where(np.abs(angle) < CATCH, balance, swing)
    return torque.clip(-TORQUE, TORQUE)[:, None]


class CueFollower(Policy):
    """Remembers by row which side was announced, 1 or -1; subclasses read it off and use it."""

    unmasked = True

    def __init__(self) -> None:
        self.side = np.zeros(0)

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        if len(self.side) != len(where):
            self.side = np.zeros(len(where))
        self.side[where] = 0

    def remember(self, cue: np.ndarray) -> None:
        """Keep what is announced, where it is not 0."""
        self.side = np.where(cue == 0, self.side, cue)


class TrackWalker(CueFollower):
    """Goes to the good end."""

    def act(self, observations: np.ndarray) -> np.ndarray:
        self.remember(observations[:, 2])
        return (self.side > 0).astype(np.int64)


class MazeWalker(CueFollower):
    """Goes to the junction and turns to the announced side."""

    def act(self, observations: np.ndarray) -> np.ndarray:
        self.remember(observations[:, 0] - observations[:, 1])
        turn = np.where(self.side > 0, UP, DOWN)
        return np.where(observations[:, 2] > 0, turn, RIGHT)


def to_the_nearest_thing(observations: np.ndarray) -> np.ndarray:
    """Moves along the column first, then along the row; up where nothing is left."""
    down, right = (observations[:, 5:] - observations[:, 3:5]).T
    along_row = np.where(right > 0, RIGHT, LEFT)
    return np.where(down < 0, UP, np.where(down > 0, DOWN, along_row))


def shortest_path(environment: Any) -> Policy:
    """Goes to a neighbour that is nearest to the goal."""
    apart = np.where(environment.joined, environment.distances, len(environment.joined))
    following = apart.argmin(axis=1)
    return Reflex(lambda nodes: following[nodes])


def random_neighbour(environment: Any) -> Draw:
    """A step of a random walk."""
    neighbours = [np.flatnonzero(row) for row in environment.joined]
    return lambda random, node: random.choice(neighbours[int(node)])


EXPERTS: dict[str, Expert] = {
    "CartPole-v1": Expert(
        "a proportional-derivative rule on the pole's angle", lambda _: Reflex(cart_pole), 0.4
    ),
    "MountainCar-v0": Expert("force along the motion", lambda _: Reflex(mountain_car), 0.25),
    "MountainCarContinuous-v0": Expert(
        f"a force of {PUSH} along the motion", lambda _: Reflex(mountain_car_continuous), 0.8
    ),
    "Acrobot-v1": Expert("torque along the motion of the links", lambda _: Reflex(acrobot), 0.8),
    "Pendulum-v1": Expert(
        "energy pumped to that of standing upright, where a linear rule balances",
        lambda environment: Reflex(partial(pendulum, gravity=environment.g)),
        0.65,
    ),
    "everyformer/MemoryTrack-v0": Expert(
        "the way to the end that was announced", lambda _: TrackWalker(), 0.6
    ),
    "everyformer/TMaze-v0": Expert(
        "the way to the junction and to the announced side", lambda _: MazeWalker(), 0.75
    ),
    "everyformer/KeyToDoor-v0": Expert(
        "the way to the key, to apples and to the door",
        lambda _: Reflex(to_the_nearest_thing),
        0.65,
    ),
    "everyformer/GraphPath-v0": Expert(
        "a shortest path", shortest_path, 0.6, random_neighbour, "steps to random neighbours"
    ),
}
"""by the name of the environment"""
