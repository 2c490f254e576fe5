"""Experts for our own environments, which are exact: none can have a better return."""

from __future__ import annotations

from typing import Any

import numpy as np

from everyformer.rl.experts.base import Expert, Reflex
from everyformer.rl.policy import Draw, Policy

UP, RIGHT, DOWN, LEFT = range(4)


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


EXPERTS = {
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
