"""The one way to an environment: what is hidden, which spaces there are, what is refused."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402

from everyformer.core.errors import (  # noqa: E402
    ConfigError,
    MissingExtraError,
    UnknownNameError,
    UnsupportedError,
)
from everyformer.rl import EnvironmentConfig, Space, make  # noqa: E402
from everyformer.rl.build import options_of, spaces_of, without_defaults  # noqa: E402


class Odd(gymnasium.Env):
    """An environment of any spaces, which is never played."""

    def __init__(self, actions: Any, observations: Any = None) -> None:
        self.action_space = actions
        self.observation_space = observations or spaces.Discrete(2)


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", None)
    del gymnasium.registry["Odd-v0"]
    gymnasium.register("Odd-v0", Odd)
    return "Odd-v0"


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("CartPole", "'CartPole-v1'"),
        ("CartPole-v7", "'CartPole-v1'"),
        ("tmaze", "'everyformer/TMaze-v0'"),
        ("everyformer/GraphPaht-v0", "'everyformer/GraphPath-v0'"),
        ("xyzzyq", "known: everyformer/.*PACKAGE:NAME"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, offered: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown environment '{name}'; .*{offered}"):
        make(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("everyformer/TMaze-v0", {"lenght": 3}, r"no option '--env.lenght'; .*'--env.length'\?"),
        ("CartPole-v1", {"max_steps": 3}, r"no option '--env.max-steps'; .*max-episode-steps"),
        ("CartPole-v1", {"render_mode": "movie"}, "no render mode 'movie'; it has human and rgb"),
        (
            "everyformer/TMaze-v0", {"render_mode": "human"},
            "everyformer/TMaze-v0 has no render mode 'human'; it has rgb_array$",
        ),
        ("FrozenLake-v1", {"map_name": "5x5"}, "FrozenLake-v1 --env.map-name 5x5 cannot be made"),
        ("nopackage:Thing-v0", {}, "the package 'nopackage', which cannot be imported"),
        ("CartPole-v1", {"mask": (1, 4, 9)}, "--env.mask 4 and 9 is not an entry .* 0 to 3"),
        ("CartPole-v1", {"mask": (-1,)}, "must be at least 0, not -1"),
        ("CartPole-v1", {"mask": (0, 1, 2, 3)}, "hides all 4 entries"),
        ("FrozenLake-v1", {"mask": (0,)}, r"observations of FrozenLake-v1 are Discrete\(16\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_sentence(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"actions": spaces.MultiDiscrete([2, 3])},
            "the actions of Odd-v0 are Multi",
        ),
        ({"actions": spaces.Box(-1, 1, (2, 2))}, "Box of one dimension"),
        ({"actions": spaces.Box(0, 9, (2,), np.int64)}, "Box of one dimension, of reals, are"),
        ({"actions": spaces.Discrete(3, start=1)}, "are numbered from 1; only those numbered from"),
        ({"observations": spaces.Tuple([spaces.Discrete(2)])}, "observations of Odd-v0 are Tuple"),
    ],
)
def test_spaces_of_another_kind_are_refused(given: dict[str, Any], message: str, odd: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        make(odd, **{"actions": spaces.Discrete(2), **given})


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(5), True),
        (spaces.Box(-2, 2, (3,)), True),
        (spaces.Box(0, 255, (8, 6, 3), np.uint8), False),
        (spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 7]), dtype=np.float64), False),
        (spaces.Box(-np.inf, np.inf, (2, 2)), False),
    ],
)
def test_a_space_comes_back_from_its_record(space: Any, action: bool) -> None:
    record = Space.of(space, "these", action=action)
    assert record.for_gymnasium() == space
    assert record.misfit(np.stack([space.sample() for _ in range(3)]), 3) is None


@pytest.mark.parametrize(
    ("mask", "left"), [((1, 3), [0, 2]), ((3, 1, 3), [0, 2]), ((0,), [1, 2, 3])]
)
def test_hidden_entries_are_left_out_of_observations_and_space(
    mask: tuple[int, ...], left: list[int]
) -> None:
    whole, part = make("CartPole-v1"), make("CartPole-v1", mask=mask)
    np.testing.assert_array_equal(part.reset(seed=3)[0], whole.reset(seed=3)[0][left])
    np.testing.assert_array_equal(part.step(1)[0], whole.step(1)[0][left])
    np.testing.assert_array_equal(part.observation_space.low, whole.observation_space.low[left])
    assert spaces_of(part, "it")[0].shape == (len(left),)


def test_two_descriptions_of_one_environment_are_equal() -> None:
    cases = [
        (EnvironmentConfig("everyformer/TMaze-v0", (), {"length": 10}), {}),
        (EnvironmentConfig("everyformer/TMaze-v0", (), {"length": 11}), {"length": 11}),
        (EnvironmentConfig("CartPole-v1", (), {"max_episode_steps": 500}), {}),
        (EnvironmentConfig("FrozenLake-v1", (), {"map_name": "4x4"}), {}),
    ]
    for config, told in cases:
        assert without_defaults(config) == EnvironmentConfig(config.name, (), told)
    assert EnvironmentConfig("CartPole-v1", (3, 1, 1)) == EnvironmentConfig("CartPole-v1", (1, 3))
    told_as = EnvironmentConfig("CartPole-v1", (1, 3), {"sutton_barto_reward": True})
    assert str(told_as) == "CartPole-v1 --env.mask 1 3 --env.sutton-barto-reward True"


def test_options_are_those_of_the_constructor_with_their_defaults() -> None:
    steps = {"max_episode_steps": None}
    assert options_of("everyformer/TMaze-v0") == steps | {"length": 10}
    assert options_of("everyformer/GraphPath-v0") == steps | {
        "nodes": 20, "edges": 25, "steps": 10, "graph": 0,
    }  # fmt: skip
    assert options_of("FrozenLake-v1")["map_name"] == "4x4"
    assert options_of("CartPole-v1")["max_episode_steps"] == 500


def test_a_limit_of_time_is_an_option_of_all() -> None:
    environment = make("CartPole-v1", max_episode_steps=2)
    environment.reset(seed=0)
    assert [environment.step(0)[3] for _ in range(2)] == [False, True]


def test_a_picture_that_needs_a_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    pole = make("CartPole-v1", render_mode="rgb_array")
    pole.reset(seed=0)
    with pytest.raises(ConfigError, match=r"render of CartPole-v1 needs .*classic-control"):
        pole.render()


def test_a_package_of_the_users_own_is_imported_for_its_environments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "their_poles.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('their_poles/Pole-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make("their_poles:their_poles/Pole-v0").observation_space.shape == (4,)
    del gymnasium.registry["their_poles/Pole-v0"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 / 0", r"the module of here_alone:It-v0 fails as it is imported \(ZeroDivisionError:"),
        ("raise SystemExit(0)", r"fails as it is imported \(SystemExit: 0\): mend it"),
        ("import nobody", "the package 'here_alone', which cannot be imported: No module named"),
        ("", "unknown environment 'here_alone:It-v0'"),
    ],
)
def test_a_module_in_the_working_directory_that_fails_is_named(
    content: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "here_alone.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "here_alone", raising=False)
    with pytest.raises(ConfigError, match=said):
        make("here_alone:It-v0")


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"'gymnasium'.*everyformer\[rl\]"):
        make("CartPole-v1")


def test_importing_waits_for_gymnasium_and_minari() -> None:
    program = (
        "import sys, everyformer, everyformer.rl as rl\n"
        "[getattr(rl, name) for name in rl.__all__]\n"
        "assert not {'gymnasium', 'minari', 'h5py', 'torch'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
