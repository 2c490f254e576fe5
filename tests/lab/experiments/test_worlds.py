"""The worlds of the Decision Transformer's claims: what is seen, done and paid there."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from everyformer.generation.acting import DecisionPolicy
from everyformer.lab.experiments.worlds import LEVELS, LIMIT, MOVES, KeyToDoor, played, pole, poles

STAY = {(0, 0): 0, (0, 1): 0, (1, 0): 2, (1, 1): 2}
"""a move against a wall from each cell"""


def towards(world: KeyToDoor) -> int:
    """A move that comes nearer to the thing of the room, or stays there."""
    if world.agent == world.thing:
        return STAY[world.agent]
    down, right = np.subtract(world.thing, world.agent)
    return MOVES.index((int(np.sign(down)), 0) if down else (0, int(np.sign(right))))


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_the_door_pays_with_the_key_alone_and_in_the_last_room(key: bool, seed: int) -> None:
    world = KeyToDoor()
    seen, _ = world.reset(seed=seed)
    rooms, rewards = [], []
    ended = False
    while not ended:
        rooms.append(int(seen[:3].argmax()))
        assert seen[:3].sum() == 1
        assert seen[3:5].tolist() == [*world.agent]
        goes = world.thing[0] >= 0 and (key or world.room == 2)
        seen, reward, ended, cut, _ = world.step(towards(world) if goes else STAY[world.agent])
        rewards.append(reward)
        if key and rooms[-1] == 0 and world.room == 0:
            assert (seen[5:] == -1).all() == world.has_key
    assert not cut
    step = len(rewards) - 1
    assert rooms == [0, 0, 0, 1, 1, 2, 2, 2][: step + 1]
    assert rewards == [0.0] * step + [float(key)]
    assert (step == 7) or key


def test_walks_are_those_of_earlier_versions() -> None:
    """Of whose runs the recorded results are."""
    walks = KeyToDoor().record(300, 5)
    assert walks.statistics.return_mean == pytest.approx(43 / 300)
    assert {*walks.lengths.tolist()} <= {6, 7, 8}
    held = poles(4)
    assert held.statistics.return_mean == 118.435
    # from the rule, which needs no luck, to chance
    means = [held.returns[level :: len(LEVELS)].mean() for level in range(len(LEVELS))]
    assert means == sorted(means)
    assert means[0] < 40
    assert means[-1] == LIMIT


class Counting:
    """Pays 1 a step, for so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.asked = steps, list[int]()

    def reset(self, *, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        self.seed = seed
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.asked.append(int(action))
        over = len(self.asked) == self.steps
        return np.zeros(3, np.float32), 1.0, over and self.steps > 2, over and self.steps <= 2, {}


def test_the_mean_return_is_over_worlds_that_end_at_different_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from helpers import build_model

    wanted: list[list[float]] = []
    act = DecisionPolicy.act

    def watched(self: DecisionPolicy, observations: np.ndarray) -> np.ndarray:
        wanted.append(self._to_go.tolist())
        assert observations.shape == (3, 3)
        return act(self, observations)

    monkeypatch.setattr(DecisionPolicy, "act", watched)
    torch.manual_seed(0)
    shape = {"state": (3,), "actions": 2, "context": 3}
    made: Any = build_model("decision-transformer", "decision", episodes=shape, width=8)
    worlds = [Counting(steps) for steps in (1, 4, 2)]
    assert played(made, 9.0, worlds, 3) == pytest.approx(7 / 3)
    assert [len(world.asked) for world in worlds] == [1, 4, 2]
    assert wanted == [[9, 9, 9], [8, 8, 8], [8, 7, 7], [8, 6, 7]]
    assert len({world.seed for world in worlds}) == 3


def test_a_pole_stands_for_its_steps_at_most() -> None:
    assert pole().spec.max_episode_steps == LIMIT
