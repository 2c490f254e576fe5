"""Small worlds that Decision Transformers are tried in: what is recorded there, how they act."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from everyformer.data.episodes.spaces import Space
from everyformer.data.episodes.trajectories import Trajectories
from everyformer.data.episodes.walks import episode_seed, record
from everyformer.generation.acting import DecisionPolicy
from everyformer.models.decision import DecisionModel
from sequence_laws.extras import extra_module

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
SIDE, ROOM, MIDDLE = 2, 3, 2
"""cells of a room's side, steps in the first and third room, and in the second"""
LIMIT = 200
"""steps after which the pole need be held up no longer"""
LEVELS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""of random actions, in turn, in episodes of the pole"""


class KeyToDoor:
    """Three rooms, one after the other: who steps on the key in the first and on the door in the
    third is paid 1, and the episode ends. In the second lies an apple, which is worth nothing.

    Seen are the room (three bits), row and column of the agent and of the room's thing, from 0 to
    1, or -1 once it is taken. In every room both are at random cells. After Hung and others (2019)
    and "Decision Transformer" (Chen and others, 2021).
    """

    steps = 2 * ROOM + MIDDLE

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        random = np.random.default_rng(seed)
        drawn = (random.choice(SIDE**2, 2, replace=False).tolist() for _ in range(3))
        self.rooms = [[divmod(cell, SIDE) for cell in cells] for cells in drawn]
        self.elapsed, self.has_key = 0, False
        self._enter(0)
        return self._seen(), {}

    def _enter(self, room: int) -> None:
        self.room = room
        self.agent, self.thing = self.rooms[room]

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move up, right, down or left."""
        self.elapsed += 1
        row, column = (here + by for here, by in zip(self.agent, MOVES[action], strict=True))
        if 0 <= row < SIDE and 0 <= column < SIDE:
            self.agent = row, column
        if self.agent == self.thing:
            if self.room == 2 and self.has_key:
                return self._seen(), 1.0, True, False, {}
            if self.room < 2:
                self.has_key |= self.room == 0
                self.thing = (1 - SIDE, 1 - SIDE)
        if self.elapsed in (ROOM, ROOM + MIDDLE):
            self._enter(self.room + 1)
        return self._seen(), 0.0, self.elapsed == self.steps, False, {}

    def _seen(self) -> np.ndarray:
        where = np.array([*self.agent, *self.thing]) / (SIDE - 1)
        return np.array([*(np.arange(3) == self.room), *where], np.float32)

    def record(self, episodes: int, seed: int) -> Trajectories:
        """Random walks."""

        def wander(random: np.random.Generator, *_: Any) -> np.int64:
            random.random()
            return random.integers(4)

        spaces = _numbers(7), Space("discrete", "int64", count=4)
        return record(self, wander, spaces, episodes, seed, "KeyToDoor", "random: random actions")


def pole() -> Any:
    """A pole to hold up, for so many steps."""
    gymnasium = extra_module("gymnasium", "rl", "this experiment")
    return gymnasium.make("CartPole-v1", max_episode_steps=LIMIT, disable_env_checker=True)


def poles(seed: int) -> Trajectories:
    """200 episodes of a pole, from random actions to those of a linear rule that holds it up."""

    def act(random: np.random.Generator, state: np.ndarray, number: int) -> Any:
        chance = random.random() < LEVELS[number % len(LEVELS)]
        return random.integers(2) if chance else np.int64(state[2] + 0.5 * state[3] > 0)

    spaces = _numbers(4), Space("discrete", "int64", count=2)
    policy = f"mixed: a linear rule, each action random with probability {LEVELS} in turn"
    return record(pole(), act, spaces, 200, seed, "CartPole-v1", policy)


def _numbers(count: int) -> Space:
    return Space("box", "float32", (count,), low=(None,), high=(None,))


def played(model: DecisionModel, target: float | None, worlds: Sequence[Any], seed: int) -> float:
    """The mean return of an episode in each world, side by side, asked for ``target``."""
    seeds = [episode_seed(seed, number) for number in range(len(worlds))]
    policy = DecisionPolicy(model, target, seeds=seeds)
    states = [world.reset(seed=own)[0] for world, own in zip(worlds, seeds, strict=True)]
    goes_on, total = np.ones(len(worlds), bool), 0.0
    while goes_on.any():
        actions = policy.act(np.stack(states))
        rewards = np.zeros(len(worlds))
        for row in np.flatnonzero(goes_on).tolist():
            states[row], rewards[row], ended, cut, _ = worlds[row].step(actions[row])
            goes_on[row] = not (ended or cut)
        policy.reward(rewards)
        total += rewards.sum()
    return total / len(worlds)
