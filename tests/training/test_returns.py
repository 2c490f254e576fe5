"""Normalised returns: 0 is random play, 1 good play, and an interval is one of such shares."""

import math
import statistics

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from everyformer.rl import EnvironmentConfig, Episode, Space
from everyformer.rl.trajectories import Trajectories
from everyformer.training.returns import played, reference

TRACK = EnvironmentConfig("everyformer/MemoryTrack-v0")
RANDOM, GOOD = -1.3, 0.4


def earned(shares: list[float]) -> Trajectories:
    """Episodes of one step, which go so far of the way from random to good play."""
    end = np.array([True])
    episodes = [
        Episode(np.zeros((2, 3), np.float32), np.array([0]),
                np.array([RANDOM + share * (GOOD - RANDOM)]), end, ~end)
        for share in shares
    ]  # fmt: skip
    seen = Space("box", "float32", (3,), low=(None,), high=(None,))
    return Trajectories(episodes, seen, Space("discrete", "int64", count=2), TRACK)


@pytest.mark.parametrize(
    "shares", [[0.0, 0.5, 1.0, 0.5], [0.25, 1.5, -0.5], [0.0, 0.0], [1.0, 1.0, 1.0]]
)
def test_the_interval_of_normalised_returns_is_that_of_the_shares(shares: list[float]) -> None:
    assert reference(TRACK) == (RANDOM, GOOD)
    found = played(earned(shares))
    middle = statistics.fmean(shares)
    half = 1.959963984540054 * statistics.stdev(shares) / math.sqrt(len(shares))
    assert found["normalised"] == pytest.approx(middle)
    assert found["normalised_interval"] == pytest.approx([middle - half, middle + half], abs=1e-6)


def test_one_episode_has_no_interval() -> None:
    found = played(earned([0.75]))
    assert found["normalised"] == pytest.approx(0.75)
    assert (found["return_interval"], found["normalised_interval"]) == (None, None)
