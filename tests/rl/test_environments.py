"""Our environments keep gymnasium's contract and the rules that their files begin with."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from everyformer.core.errors import ConfigError  # noqa: E402
from everyformer.rl import EnvironmentConfig, make, make_vector  # noqa: E402
from everyformer.rl.environments import canvas, register  # noqa: E402
from everyformer.rl.environments.canvas import Canvas  # noqa: E402

TRACK, MAZE, DOOR, GRAPH = (
    f"everyformer/{name}-v0" for name in ("MemoryTrack", "TMaze", "KeyToDoor", "GraphPath")
)
OURS = [TRACK, MAZE, DOOR, GRAPH]
UP, RIGHT, DOWN, LEFT = range(4)
ours = pytest.mark.parametrize("name", OURS)


def bare(name: str, **options: Any) -> Any:
    """The environment without wrappers."""
    return make(name, **options).unwrapped


def play(environment: Any, actions: list[int], seed: int = 0) -> list[tuple[Any, ...]]:
    """What reset and steps give, until the actions or the episode end."""
    told = [environment.reset(seed=seed)]
    for action in actions:
        told.append(environment.step(action))
        if told[-1][2] or told[-1][3]:
            break
    return told


@ours
def test_gymnasium_finds_nothing_to_warn_of(name: str) -> None:
    from gymnasium.utils.env_checker import check_env

    register()
    register()
    check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)


@ours
def test_an_episode_follows_from_its_seed_and_its_actions(name: str) -> None:
    first, second = bare(name), bare(name)
    actions = np.random.default_rng(0).integers(first.action_space.n, size=40).tolist()
    second.reset(seed=5)
    second.step(0)
    a, b = play(first, actions, 3), play(second, actions, 3)
    assert str(a) == str(b)
    starts = {str(first.reset(seed=seed)[0]) for seed in range(20)}
    assert len(starts) > 1


@ours
def test_pictures_are_small_and_show_what_happens(name: str) -> None:
    environment = bare(name, render_mode="rgb_array")
    environment.reset(seed=0)
    pictures = [environment.render()]
    for action in range(environment.action_space.n):
        environment.step(action)
        pictures.append(environment.render())
    height, width, channels = pictures[0].shape
    assert pictures[0].dtype == np.uint8
    assert channels == 3
    assert max(height, width) <= 600
    assert len(np.unique(pictures[0].reshape(-1, 3), axis=0)) > 3
    assert max((a != b).any(-1).sum() for a, b in pairwise(pictures)) > 100
    assert environment.metadata["render_fps"] > 0
    blank = bare(name)
    blank.reset()
    assert blank.render() is None


def test_a_picture_has_rows_first() -> None:
    """A box, a disc and a line, each where it belongs and nowhere else."""
    pytest.importorskip("pygame")
    picture = Canvas(20, 40)
    picture.box(2, 30, 4, 6, canvas.WALL)
    picture.disc(15, 5, 3, canvas.GOOD)
    picture.line((10, 0), (10, 39), 1, canvas.CUE)
    pixels = picture.pixels()
    assert pixels.shape == (20, 40, 3)
    rows, columns = np.nonzero((pixels == canvas.WALL).all(-1))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (2, 5, 30, 35)
    rows, columns = np.nonzero((pixels == canvas.GOOD).all(-1))
    assert abs(rows.mean() - 15) <= 0.5
    assert abs(columns.mean() - 5) <= 0.5
    assert len(rows) == pytest.approx(9 * np.pi, abs=6)
    assert (pixels[10] == canvas.CUE).all()


@ours
def test_a_row_of_a_vector_is_the_environment_alone(name: str) -> None:
    vector: Any = make_vector(EnvironmentConfig(name), 2)
    alone = [bare(name) for _ in range(2)]
    seen, _ = vector.reset(seed=[1, 2])
    expected = [each.reset(seed=seed)[0] for each, seed in zip(alone, (1, 2), strict=True)]
    np.testing.assert_array_equal(seen, expected)
    seen, rewards, *_ = vector.step(np.array([1, 0]))
    steps = [each.step(action) for each, action in zip(alone, (1, 0), strict=True)]
    np.testing.assert_array_equal(seen, [step[0] for step in steps])
    np.testing.assert_array_equal(rewards, [step[1] for step in steps])
    mask = np.array([False, True])
    again, _ = vector.reset(seed=[0, 7], options={"reset_mask": mask})
    np.testing.assert_array_equal(again, [steps[0][0], alone[1].reset(seed=7)[0]])


@ours
def test_an_action_that_is_not_there_is_refused(name: str) -> None:
    environment = bare(name)
    environment.reset(seed=0)
    with pytest.raises(ConfigError, match=r"an action of Discrete.* is needed, not 99"):
        environment.step(99)


@pytest.mark.parametrize("seed", range(6))
def test_the_track_shows_its_cue_while_it_holds_the_agent(seed: int) -> None:
    track = bare(TRACK)
    told = play(track, [1] * 16, seed)
    cues = np.array([step[0][[0, 2]] for step in told])
    positions = np.array([step[0][1] for step in told])
    assert (np.abs(cues[:2]) == 1).all()
    assert (cues[:, 0] == -cues[:, 1]).all()
    assert (cues[2:] == 0).all()
    assert (positions[:3] == positions[0]).all()
    np.testing.assert_allclose(np.diff(positions[2:]), 0.2, rtol=1e-6)
    assert positions[-1] == 1
    good = cues[0, 1] == 1
    assert told[-1][1] == (1 if good else -1)
    assert told[-1][4]["success"] == good
    assert [step[1] for step in told[1:-1]] == [-0.1] * (len(told) - 2)
    assert [step[2] for step in told[1:]] == [False] * (len(told) - 2) + [True]


def test_after_the_cue_nothing_tells_which_end_of_the_track_is_good() -> None:
    seen: dict[tuple[float, ...], set[bool]] = {}
    for seed in range(60):
        told = play(bare(TRACK), [0, 0, 0, 1, 0], seed)
        later = tuple(float(x) for step in told[2:] for x in step[0])
        seen.setdefault(later, set()).add(bool(told[0][0][2] > 0))
    assert all(sides == {True, False} for sides in seen.values())
    assert len(seen) == 5


def test_the_track_ends_after_its_steps() -> None:
    told = play(bare(TRACK), [0, 1] * 20)
    assert len(told) - 1 == 16
    assert told[-1][2:4] == (False, True)
    assert sum(step[1] for step in told[1:]) == pytest.approx(-1.6)


@pytest.mark.parametrize("length", [1, 3, 10])
@pytest.mark.parametrize("right", [True, False])
def test_the_maze_pays_for_the_announced_turn(length: int, right: bool) -> None:
    maze = bare(MAZE, length=length)
    first, _ = maze.reset(seed=4)
    cue = UP if first[0] else DOWN
    turn = cue if right else DOWN + UP - cue
    told = play(maze, [RIGHT] * length + [turn], 4)
    seen = np.array([step[0] for step in told])
    assert first[:2].sum() == 1
    assert (seen[1:, :2] == 0).all()
    assert seen[:, 2].tolist() == [0.0] * length + [1.0] * 2
    assert [step[1] for step in told[1:]] == [0.0] * length + [4.0 if right else -0.1]
    assert told[-1][2]
    assert told[-1][4]["success"] is right


def test_walls_of_the_maze_cost_and_its_time_is_four_ways() -> None:
    told = play(bare(MAZE, length=2), [LEFT, UP, DOWN, RIGHT, RIGHT, RIGHT, LEFT] + [LEFT] * 20)
    assert [step[1] for step in told[1:8]] == [-0.1, -0.1, -0.1, 0, 0, -0.1, 0]
    assert len(told) - 1 == 12
    assert told[-1][2:4] == (False, True)
    assert (np.array([step[0][:2] for step in told[1:]]) == 0).all()


def go(environment: Any, wanted: bool) -> list[tuple[Any, ...]]:
    """Walk to the thing of each room (to the key only if ``wanted``), then stay beside it."""
    observation, _ = environment.reset(seed=2)
    told = []
    while not (told and (told[-1][2] or told[-1][3])):
        down, right = observation[5:] - observation[3:5]
        action = (DOWN if down > 0 else UP) if down else (RIGHT if right > 0 else LEFT)
        if observation[0] and not wanted:
            step = environment.step(_away(environment))
        else:
            step = environment.step(action)
        observation = step[0]
        told.append(step)
    return told


def _away(environment: Any) -> int:
    """A move that does not end on a thing."""
    row, column = environment.agent
    for action, (down, right) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
        at = tuple(np.clip((row + down, column + right), 0, environment.size - 1))
        if at not in environment.things:
            return action
    raise AssertionError


@pytest.mark.parametrize("wanted", [True, False])
def test_the_door_pays_at_the_end_and_with_the_key_alone(wanted: bool) -> None:
    door = bare(DOOR)
    go(door, not wanted)
    told = go(door, wanted)
    rooms = [int(np.argmax(step[0][:3])) for step in told]
    assert rooms[:9] == [0] * 9
    assert rooms[9:19] == [1] * 10
    assert set(rooms[19:]) == {2}
    assert [step[1] for step in told] == [0.0] * (len(told) - 1) + [float(wanted)]
    assert told[-1][2:4] == (True, False)
    assert told[-1][4]["success"] is wanted
    assert (len(told) == 30) is not wanted
    assert any((step[0][:3] == (0, 0, 1)).all() and step[0][5] >= 0 for step in told)


def test_the_key_is_not_seen_in_later_rooms() -> None:
    """With the key taken and with it left, later rooms look alike wherever the agent is put."""
    environment = bare(DOOR)
    views = []
    for has_key in (False, True):
        environment.reset(seed=1)
        environment.has_key = has_key
        environment._enter(2)
        views.append(environment.observe())
    np.testing.assert_array_equal(*views)


def test_things_lie_apart_and_are_taken_once() -> None:
    environment = bare(DOOR, size=3, apples=8)
    environment.reset(seed=0)
    for room, count in enumerate((1, 8, 1)):
        environment._enter(room)
        assert len({environment.agent, *environment.things}) == count + 1
    environment._enter(0)
    environment.agent = environment.things[0]
    environment.move(UP)
    environment.agent = (1, 1)
    environment._enter(1)
    before = len(environment.things)
    for action in (UP, RIGHT, DOWN, DOWN, LEFT, LEFT, UP, UP):
        environment.move(action)
    assert len(environment.things) < before


def graph(**options: Any) -> Any:
    return bare(GRAPH, **options)


@pytest.mark.parametrize(("nodes", "edges", "seed"), [(20, 25, 0), (20, 19, 1), (6, 15, 2)])
def test_the_graph_is_drawn_once_and_distances_are_those_of_powers(
    nodes: int, edges: int, seed: int
) -> None:
    options = {"nodes": nodes, "edges": edges, "graph": seed, "steps": 20}
    environment = graph(**options)
    joined = environment.joined
    assert (joined == joined.T).all()
    assert not joined.diagonal().any()
    assert joined.sum() == 2 * edges
    reached, distances = np.eye(nodes, dtype=bool), np.where(np.eye(nodes, dtype=bool), 0, -1)
    for length in range(1, nodes):
        reached = reached @ joined | reached
        distances[reached & (distances < 0)] = length
    np.testing.assert_array_equal(environment.distances, distances[environment.goal])
    np.testing.assert_array_equal(graph(**options).joined, joined)
    assert edges == 15 or (graph(**options | {"graph": 9}).joined != joined).any()


def test_a_walk_costs_one_a_step_and_goes_along_edges_alone() -> None:
    environment = graph()
    node, info = environment.reset(seed=1)
    starts = {int(environment.reset(seed=seed)[0]) for seed in range(300)}
    assert starts == set(range(20)) - {environment.goal}
    node, info = environment.reset(seed=1)
    np.testing.assert_array_equal(info["action_mask"], environment.joined[node])
    stranger = int(np.flatnonzero(info["action_mask"] == 0)[0])
    stayed, reward, *_ = environment.step(stranger)
    assert (stayed, reward) == (node, -1)
    total = 0.0
    for _ in range(environment.distances[node]):
        ahead = environment.joined[node] & (environment.distances < environment.distances[node])
        node, reward, ended, cut, info = environment.step(int(np.flatnonzero(ahead)[0]))
        total += reward
    assert (node, ended, cut, info["success"]) == (environment.goal, True, False, True)
    assert total == -environment.distances[environment.path[0]]
    told = play(environment, [int(environment.reset(seed=1)[0])] * 20, 1)
    assert (len(told) - 1, told[-1][2:4]) == (10, (False, True))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (TRACK, {"steps": 8}, r"'--env.steps'=8 .*at least 9"),
        (TRACK, {"cue_steps": 0}, r"'--env.cue-steps' must be at least 1"),
        (MAZE, {"length": 0}, r"'--env.length' must be at least 1, not 0"),
        (MAZE, {"length": 2.5}, r"'--env.length' must be int, not 2.5"),
        (DOOR, {"size": 1}, r"'--env.size' must be at least 2"),
        (DOOR, {"apples": 16}, r"'--env.apples'=16 do not fit .* at most 15"),
        (GRAPH, {"edges": 18}, r"'--env.edges'=18 .* from 19 to 190"),
        (GRAPH, {"nodes": 4, "edges": 7}, r"'--env.edges'=7 .* from 3 to 6"),
        (GRAPH, {"steps": 1}, r"'--env.steps'=1 are too few .* at least \d"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **options)
