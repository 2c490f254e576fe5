"""Episodes and data sets: what is summed, what is chosen, what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import DataError, EveryformerError, UnsupportedError
from everyformer.data.episodes import Episode, Space, Trajectories, returns_to_go

PLANE = Space("box", "float64", (2,), low=(None,), high=(None,))
FOUR = Space("discrete", "int64", count=4)


def arrays(steps: int = 4, seed: int = 0, **others: Any) -> dict[str, Any]:
    """The arrays of an episode that ends by itself, some of them others."""
    random = np.random.default_rng((seed, steps))
    return {
        "observations": random.standard_normal((steps + 1, 2)),
        "actions": random.integers(4, size=steps),
        "rewards": random.integers(-3, 9, size=steps).astype(float),
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, bool),
    } | others


def data(*episodes: Episode, **others: Any) -> Trajectories:
    return Trajectories(episodes, PLANE, FOUR, "CartPole-v1", "by hand", **others)


def several(*lengths: int) -> Trajectories:
    return data(*(Episode(**arrays(steps, seed)) for seed, steps in enumerate(lengths)))


@pytest.mark.parametrize(
    ("rewards", "sums"),
    [
        ([1, 2, 3, 4, 5], [15, 14, 12, 9, 5]),
        ([0, 0, 1], [1, 1, 1]),
        ([-2.5], [-2.5]),
        ([2**53, 1, -(2**53)], [1, 1 - 2**53, -(2**53)]),
    ],
)
def test_returns_to_go_are_sums_to_the_end(rewards: list[float], sums: list[float]) -> None:
    found = returns_to_go(np.array(rewards, np.float32 if len(rewards) == 5 else np.float64))
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(sums)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observations": np.zeros((4, 2))}, "4 observations and 4 actions: .* must be one"),
        ({"rewards": np.array([1, np.nan, 2, 3])}, "rewards holds nan at step 1: .* finite"),
        ({"observations": np.full((5, 2), np.nan)}, "observations holds nan at step 0"),
        ({"rewards": np.zeros(3)}, r"rewards has the shape \(3,\): .* each of the 4 actions"),
        ({"rewards": np.zeros((4, 1))}, r"rewards has the shape \(4, 1\)"),
        ({"terminations": np.zeros(2, bool)}, r"terminations has the shape \(2,\)"),
        ({"truncations": np.array([0, 0, 1, 0])}, "truncations is set at step 2 of 4: only"),
        ({"terminations": np.array([0, 0, 0, 2])}, "terminations holds 2: it must hold booleans"),
        ({"actions": np.array(["a"] * 4)}, "actions must be an array of numbers"),
        ({"observations": np.array([None] * 5)}, "observations must be an array of numbers"),
        ({"rewards": np.float64(1)}, "rewards must be an array of numbers"),
        (arrays(0), "the episode is empty: it needs one action at least"),
    ],
)  # fmt: skip
def test_an_episode_that_contradicts_itself_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Episode(**arrays(**wrong) if wrong.keys() != arrays().keys() else wrong)


def test_an_episode_may_end_in_any_way_and_keeps_its_types() -> None:
    for ends in ((0, 0), (1, 0), (0, 1), (1, 1)):
        flags = [np.array([0, 0, 0, end]) for end in ends]
        episode = Episode(**arrays(terminations=flags[0], truncations=flags[1]))
        assert (episode.terminations.tolist()[-1], episode.truncations.tolist()[-1]) == ends
        assert episode.terminations.dtype == episode.truncations.dtype == np.bool_
    bytes_ = np.zeros((5, 6, 6, 3), np.uint8)
    episode = Episode(**arrays(observations=bytes_, rewards=np.ones(4, np.float32)))
    assert episode.observations.dtype == np.uint8
    assert episode.rewards.dtype == np.float64
    assert (len(episode), episode.total) == (4, 4.0)


def test_episodes_are_equal_if_all_of_them_is() -> None:
    one = Episode(**arrays())
    assert one == Episode.of(one.arrays())
    for change in ({"rewards": one.rewards + 1}, {"actions": one.actions.astype(np.int32)}):
        assert one != dataclasses.replace(one, **change)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"actions": np.array([0, 1, 4, 0])}, "episode 1: the actions hold 4 at step 2: from 0"),
        ({"actions": np.array([0, -1, 2, 0])}, "the actions hold -1 at step 1: from 0 to 3"),
        ({"actions": np.zeros((4, 1))}, r"the actions are float64 in the shape \(4, 1\)"),
        ({"observations": np.zeros((5, 3))}, r"observations have the shape \(3,\) a row: \(2,\)"),
        ({"observations": np.zeros((5, 2), int)}, "the observations are int64: reals"),
    ],
)  # fmt: skip
def test_an_episode_of_other_spaces_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data(Episode(**arrays()), Episode(**arrays(**wrong)))


def test_a_data_set_without_episodes_is_refused() -> None:
    with pytest.raises(DataError, match="the data set holds no episode"):
        data()


def test_statistics_are_those_of_all_rows() -> None:
    sets = several(3, 5, 4)
    told = sets.statistics
    acted_on = np.concatenate([episode.observations[:-1] for episode in sets.episodes])
    returns = [episode.rewards.sum() for episode in sets.episodes]
    assert (told.episodes, told.steps, len(sets)) == (3, 12, 3)
    assert sets.lengths.tolist() == [3, 5, 4]
    assert sets.returns.tolist() == returns
    np.testing.assert_allclose(told.observation_mean, acted_on.mean(0))
    np.testing.assert_allclose(told.observation_std, acted_on.std(0))
    assert (told.return_mean, told.return_std) == pytest.approx((np.mean(returns), np.std(returns)))
    assert (told.return_min, told.return_max) == (min(returns), max(returns))
    assert (sum(told.histogram), len(told.histogram) + 1) == (3, len(told.edges))
    assert (told.edges[0], told.edges[-1]) == (min(returns), max(returns))


def test_they_are_printed_in_a_line() -> None:
    ones = Episode(**arrays(rewards=np.ones(4)))
    assert repr(ones) == "Episode(4 steps, return 4)"
    of = "CartPole-v1, return 4 ± 0"
    assert repr(data(ones, ones)) == f"Trajectories(2 episodes, 8 steps of {of})"


def test_discrete_observations_have_no_mean() -> None:
    nodes = Episode(**arrays(observations=np.arange(5) % 4))
    assert Trajectories([nodes], FOUR, FOUR).statistics.observation_mean is None


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_are_whole_episodes_within_the_budget(share: float, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 9, 12).tolist()
    sets = several(*lengths)
    kept, left = [], share * sum(lengths)
    for number in sorted(range(12), key=lambda n: (-sets.returns[n], n)):
        if lengths[number] > left:
            break
        kept.append(number)
        left -= lengths[number]
    kept = sorted(kept) or [int(np.argmax(sets.returns))]
    assert sets.best(share).episodes == tuple(sets.episodes[number] for number in kept)
    assert sets.best(share).environment == "CartPole-v1"


def test_delayed_rewards_come_with_the_last_step() -> None:
    sets = several(3, 5)
    late = sets.delayed()
    assert late.returns.tolist() == sets.returns.tolist()
    assert all(not episode.rewards[:-1].any() for episode in late.episodes)
    assert late.recipe == "by hand; rewards delayed to the end"


@pytest.mark.parametrize(
    ("rows", "action", "space"),
    [
        ([np.array([0, 3]), np.array([5])], True, Space("discrete", "int64", count=6)),
        ([np.array([-3, -2])], True, Space("discrete", "int64", count=1)),
        ([np.zeros((3, 2))], True, PLANE),
        ([np.zeros((3, 2), int)], True, UnsupportedError),
        ([np.zeros(3)], True, UnsupportedError),
        ([np.zeros(3)], False, UnsupportedError),
        ([np.zeros((3, 2, 2))], True, UnsupportedError),
        (
            [np.zeros((3, 4, 4), np.uint8)], False,
            Space("box", "uint8", (4, 4), low=(None,), high=(None,)),
        ),
    ],
)  # fmt: skip
def test_the_space_of_bare_arrays_is_the_smallest(
    rows: list[np.ndarray], action: bool, space: Any
) -> None:
    if isinstance(space, Space):
        assert Space.seen_in(rows, "these", action=action) == space
    else:
        with pytest.raises(EveryformerError, match=r"these are .* are supported"):
            Space.seen_in(rows, "these", action=action)
