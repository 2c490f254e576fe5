"""Recording: every episode follows from its seed, whichever are played beside it; recipes."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from everyformer.core.errors import (
    ConfigError,
    DataError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
)
from everyformer.rl import (
    EnvironmentConfig,
    Episode,
    Policy,
    Space,
    collect,
    frames,
    make,
    recipe,
)
from everyformer.rl.environments.base import CUE
from everyformer.rl.experts import EXPERTS, MazeWalker
from everyformer.rl.policy import uniform
from everyformer.rl.replay import infos

POLE = EnvironmentConfig("CartPole-v1", (1, 3))
MAZE = EnvironmentConfig("everyformer/TMaze-v0", (), {"length": 3})
GRAPH = EnvironmentConfig("everyformer/GraphPath-v0")
WAVE = EnvironmentConfig("Pendulum-v1", (), {"max_episode_steps": 20})


class Told(Policy):
    """Notes all that it is told, and always acts alike."""

    recipe = "always alike"

    def __init__(self, action: Any = 1) -> None:
        self.action = action
        self.begun: list[tuple[int, int]] = []
        self.seen: list[np.ndarray] = []
        self.paid: list[np.ndarray] = []

    def reset(self, where: np.ndarray, episodes: np.ndarray, seeds: np.ndarray) -> None:
        assert where.dtype == np.bool_
        self.begun += [(int(episodes[row]), int(seeds[row])) for row in np.flatnonzero(where)]

    def act(self, observations: np.ndarray) -> np.ndarray:
        self.seen.append(observations)
        return np.array([self.action] * len(observations))

    def reward(self, rewards: np.ndarray) -> None:
        self.paid.append(rewards)

    def facts(self, episode: int) -> dict[str, float]:
        return {"wanted": 10.0 * episode}


@pytest.mark.parametrize("environment", [POLE, MAZE, GRAPH, WAVE], ids=str)
def test_data_do_not_depend_on_how_many_are_played_at_once(environment: EnvironmentConfig) -> None:
    one, *others = (
        collect(environment, recipe("mixed", environment), 7, seed=2, parallel=rows)
        for rows in (1, 3, 7, 99)
    )
    assert all(other == one for other in others)
    assert collect(environment, recipe("mixed", environment), 3, 2).episodes == one.episodes[:3]
    other = collect(environment, recipe("mixed", environment), 7, seed=3)
    assert all(a != b for a, b in zip(one.episodes, other.episodes, strict=True))
    assert len({episode.seed for episode in (*one.episodes, *other.episodes)}) == 14


@pytest.mark.parametrize("environment", [POLE, MAZE], ids=str)
def test_a_policy_plays_again_with_another_number_of_rows(environment: EnvironmentConfig) -> None:
    policy = recipe("mixed", environment)
    one, *others = (collect(environment, policy, 4, parallel=rows) for rows in (2, 3, 1))
    assert others == [one, one]


@pytest.mark.parametrize("environment", [POLE, WAVE, MAZE, GRAPH], ids=str)
def test_an_episode_is_what_the_environment_does(environment: EnvironmentConfig) -> None:
    data = collect(environment, recipe("mixed", environment), 3)
    for episode in data.episodes:
        played = make(environment.name, mask=environment.mask, **environment.options)
        seen = [played.reset(seed=episode.seed)[0]]
        for step, action in enumerate(episode.actions):
            observation, reward, ended, cut, _ = played.step(action)
            seen.append(observation)
            assert episode.rewards[step] == reward
            assert (episode.terminations[step], episode.truncations[step]) == (ended, cut)
        np.testing.assert_array_equal(episode.observations, seen)
        assert episode.terminations[-1] or episode.truncations[-1]


def test_a_policy_is_told_of_starts_and_rewards_and_sees_what_is_not_hidden() -> None:
    policy = Told()
    data = collect(POLE, policy, 5, seed=1, parallel=2)
    seeds = [int(episode.seed or 0) for episode in data.episodes]
    assert [start for start in policy.begun if start[0] < 4][:4] == list(enumerate(seeds))[:4]
    assert {number for number, _ in policy.begun} == set(range(5))
    assert dict(policy.begun) == dict(enumerate(seeds))
    assert all(seen.shape == (2, 2) for seen in policy.seen)
    assert len(policy.paid) == len(policy.seen)
    assert all(paid.tolist() == [1, 1] for paid in policy.paid)
    assert [episode.facts for episode in data.episodes] == [{"wanted": 10.0 * n} for n in range(5)]
    assert (data.recipe, data.seed, data.environment) == ("always alike", 1, POLE)
    np.testing.assert_array_equal(policy.seen[0][0], data.episodes[0].observations[0])


def test_an_expert_sees_what_is_hidden_from_others() -> None:
    hidden = collect(POLE, recipe("expert", POLE), 2)
    whole = collect("CartPole-v1", recipe("expert", EnvironmentConfig("CartPole-v1")), 2)
    assert hidden.returns.tolist() == [500, 500]
    for part, all_ in zip(hidden.episodes, whole.episodes, strict=True):
        np.testing.assert_array_equal(part.observations, all_.observations[:, [0, 2]])


def test_progress_counts_what_is_kept() -> None:
    told: list[tuple[int, int]] = []
    data = collect(MAZE, recipe("mixed", MAZE), 5, parallel=3, progress=lambda *n: told.append(n))
    assert told == sorted(told)
    assert told[-1] == (5, data.statistics.steps)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (1.5, "for CartPole-v1 are float64 in the shape"),
        (2, "hold 2 at row 0: from 0 to 1 is allowed"),
        ([1, 1], r"are int64 in the shape \(8, 2\)"),
    ],
)
def test_actions_that_the_environment_has_not_are_refused(action: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        collect(POLE, Told(action), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "'--episodes' must be at least 1, not 0"),
        ({"episodes": 1, "parallel": 0}, "'--parallel' must be at least 1"),
        ({"episodes": 1, "seed": -1}, "'--seed' must be at least 0"),
    ],
)
def test_numbers_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        collect(POLE, Told(), **options)


FLOORS = {
    "CartPole-v1": (450, 60),
    "MountainCar-v0": (-140, -190),
    "MountainCarContinuous-v0": (90, 0),
    "Acrobot-v1": (-150, -400),
    "Pendulum-v1": (-400, -700),
    "everyformer/MemoryTrack-v0": (0.2, -0.3),
    "everyformer/TMaze-v0": (4, 0),
    "everyformer/KeyToDoor-v0": (1, 0.5),
    "everyformer/GraphPath-v0": (-6, -7),
}
"""what an expert reaches at least, and a random policy does not"""


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_solve_what_random_actions_do_not(name: str) -> None:
    environment = EnvironmentConfig(name)
    floor, ceiling = FLOORS[name]
    best = collect(environment, recipe("expert", environment), 6)
    chance = collect(environment, recipe("random", environment), 6)
    assert best.returns.mean() >= floor
    assert chance.returns.mean() <= ceiling
    assert best.episodes[0].facts["noise"] == 0
    assert chance.episodes[5].facts["noise"] == 1


@pytest.mark.parametrize("gravity", [2.0, 15.0])
def test_the_pendulum_is_swung_up_under_another_gravity(gravity: float) -> None:
    planet = EnvironmentConfig("Pendulum-v1", (), {"g": gravity})
    data = collect(planet, recipe("expert", planet), 4)
    assert data.returns.mean() > {2.0: -150, 15.0: -500}[gravity]


def test_the_experts_of_our_environments_cannot_be_bettered() -> None:
    walks = collect(GRAPH, recipe("expert", GRAPH), 30)
    graph = make(GRAPH.name).unwrapped
    for episode in walks.episodes:
        assert episode.total == -graph.distances[episode.observations[0]]
    assert walks.success == 1
    for name, most in (("MemoryTrack", 1), ("TMaze", 4), ("KeyToDoor", 1)):
        config = EnvironmentConfig(f"everyformer/{name}-v0")
        found = collect(config, recipe("expert", config), 30)
        assert all(episode.rewards[-1] == most for episode in found.episodes)
        assert name != "TMaze" or set(found.lengths.tolist()) == {11}


def test_experts_forget_the_cue_of_the_episode_before() -> None:
    where, numbers = np.array([True, False]), np.zeros(2, int)
    up, junction = np.array([[1.0, 0, 0]] * 2), np.array([[0.0, 0, 1]] * 2)
    walker = MazeWalker()
    walker.reset(where | True, numbers, numbers)
    assert walker.act(up).tolist() == [1, 1]
    walker.reset(where, numbers, numbers)
    assert walker.act(junction).tolist() == [2, 0]


def test_random_walks_of_the_graph_go_along_edges() -> None:
    joined = make(GRAPH.name).unwrapped.joined
    data = collect(GRAPH, recipe("random", GRAPH), 20)
    taken = {
        (int(a), int(b))
        for episode in data.episodes
        for a, b in zip(episode.observations, episode.actions, strict=False)
    }
    assert all(joined[a, b] for a, b in taken)
    assert len(taken) > 30


def test_the_share_of_success_is_that_of_solved_episodes() -> None:
    track = EnvironmentConfig("everyformer/MemoryTrack-v0")
    data = collect(track, recipe("medium", track), 40)
    assert data.success == np.mean([episode.rewards[-1] == 1 for episode in data.episodes])
    assert 0 < data.success < 1
    assert collect(POLE, recipe("random", POLE), 3).success is None


def test_noise_is_the_share_of_random_actions() -> None:
    """Of two actions half of the random ones are the expert's."""
    track = EnvironmentConfig("everyformer/MemoryTrack-v0", (), {"steps": 400, "cue_steps": 390})
    data = collect(track, recipe("expert", track, noise=0.4), 8)
    others = []
    for episode in data.episodes:
        right = episode.observations[0, 2] > 0
        others.append(np.mean(episode.actions[:390] != right))
    assert np.mean(others) == pytest.approx(0.2, abs=3 * 0.4 / np.sqrt(8 * 390))
    assert data.episodes[3].facts["noise"] == 0.4


@pytest.mark.parametrize(
    ("tier", "noise"),
    [
        ("random", [1.0] * 6),
        ("medium", [0.4] * 6),
        ("expert", [0.0] * 6),
        ("mixed", [1.0, 0.75, 0.5, 0.25, 0.0, 1.0]),
    ],
)
def test_a_tier_is_its_noise_and_says_so(tier: str, noise: list[float]) -> None:
    policy = recipe(tier, POLE)
    assert [policy.facts(n)["noise"] for n in range(6)] == noise
    assert policy.recipe.startswith(f"{tier}: ")
    for level in dict.fromkeys(noise) if tier != "random" else ():
        assert f"{level:g}" in policy.recipe.split("probability")[1]


def test_recipes_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'experts'; did you mean 'expert'"):
        recipe("experts", POLE)
    frozen = EnvironmentConfig("FrozenLake-v1")
    for tier in ("expert", "mixed", "medium"):
        with pytest.raises(ConfigError, match=r"no expert for FrozenLake-v1, .* take 'random'"):
            recipe(tier, frozen)
    assert collect(frozen, recipe("random", frozen), 3).recipe == "random: uniformly random actions"
    with pytest.raises(ConfigError, match="'--noise' must be at least 0 and at most 1, not 2"):
        recipe("expert", POLE, noise=2)
    with pytest.raises(ConfigError, match=r"--noise=0.5 beside the recipe 'mixed', .* 'expert'"):
        recipe("mixed", POLE, noise=0.5)
    with pytest.raises(UnsupportedError, match="actions without bounds cannot be drawn"):
        uniform(Space("box", "float32", (1,), low=(None,), high=(1.0,)))


def test_an_episode_is_drawn_by_playing_it_once_more() -> None:
    data = collect(MAZE, recipe("mixed", MAZE), 2)
    for episode in data.episodes:
        film = frames(MAZE, episode)
        assert len(film) == len(episode) + 1
        assert film.dtype == np.uint8
        played: Any = make(MAZE.name, render_mode="rgb_array", **MAZE.options)
        played.reset(seed=episode.seed)
        np.testing.assert_array_equal(film[0], played.render())
        for action in episode.actions:
            played.step(action)
        np.testing.assert_array_equal(film[-1], played.render())


@pytest.mark.parametrize(
    ("name", "seen"), [("everyformer/MemoryTrack-v0", [0, 1]), ("everyformer/TMaze-v0", [0])]
)
def test_an_environment_tells_at_which_steps_its_cue_is_seen(name: str, seen: list[int]) -> None:
    environment = EnvironmentConfig(name)
    episode = collect(environment, recipe("expert", environment), 1).episodes[0]
    flags = infos(environment, episode, CUE)
    assert flags is not None
    assert len(flags) == len(episode) + 1
    assert np.flatnonzero(flags).tolist() == seen
    assert infos(environment, episode, "weather") is None


def test_an_episode_that_goes_another_way_is_not_drawn() -> None:
    episode = collect(MAZE, recipe("expert", MAZE), 1).episodes[0]
    longer = EnvironmentConfig(MAZE.name, (), {"length": 4})
    with pytest.raises(DataError, match=r"goes another way at step 3 .* --env.length 4"):
        frames(longer, episode)
    with pytest.raises(DataError, match="the episode has no seed"):
        frames(MAZE, Episode.of(episode.arrays()))
