"""An environment of anybody's fails in its own name, whatever it does; nothing else does."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium

from everyformer.core.errors import ConfigError, FaultyEnvironmentError
from everyformer.rl import EnvironmentConfig, collect, make, make_vector, recipe
from everyformer.rl.build import LIMIT
from everyformer.rl.endless import EndlessRows
from scripted import MOMENT, SEEN, Scripted, failing, scripted

SHAPE = r"where float32 in the shape \(3,\), as its observation_space says, is expected"
FIVE = "where five values, an observation, a reward, terminated, truncated and info, are expected"
TWO = "where two values, an observation and info, are expected"
NUMBER, FLAG = "where a finite number is expected", "where True or False is expected"
BOOM = RuntimeError("boom")


def step(
    seen: Any = SEEN, reward: Any = 1.0, ended: Any = False, cut: Any = False, info: Any = None
) -> Callable[[], Any]:
    return lambda: (seen, reward, ended, cut, {} if info is None else info)


def gives(what: Any) -> Callable[[], Any]:
    return lambda: what


STEPS = [
    (failing(BOOM), "raised RuntimeError: boom"),
    (failing(SystemExit(0)), "raised SystemExit: 0"),
    (failing(KeyError()), "raised KeyError"),
    (gives(3), f"gave 3, {FIVE}"),
    (gives((SEEN, 1.0, False, {})), f"gave 4 values, {FIVE}"),
    (gives((SEEN, 1.0, False, False, {}, 0)), f"gave 6 values, {FIVE}"),
    (step(reward="much"), f"gave 'much' as its reward, {NUMBER}"),
    (step(reward=gives), f"gave <function .* as its reward, {NUMBER}"),
    (step(reward=np.ones(2)), rf"gave float64 in the shape \(2,\) as its reward, {NUMBER}"),
    (step(reward=float("nan")), f"gave nan as its reward, {NUMBER}"),
    (step(reward=float("-inf")), f"gave -inf as its reward, {NUMBER}"),
    (step(reward=1e39), rf"gave 1e\+39 as its reward, {NUMBER}"),
    (step(None), f"gave None as its observation, {SHAPE}"),
    (step(SEEN[:2]), rf"gave float32 in the shape \(2,\) as its observation, {SHAPE}"),
    (step([[1], [1, 2]]), rf"gave \[\[1\], \[1, 2\]\] as its observation, {SHAPE}"),
    (step(SEEN.astype(str)), rf"gave <U32 in the shape \(3,\) as its observation, {SHAPE}"),
    (step([0, -np.inf, 0]), f"gave -inf in its observation, {NUMBER}"),
    (step(SEEN * np.nan), f"gave nan in its observation, {NUMBER}"),
    (step(ended=1), f"gave 1 as terminated, {FLAG}"),
    (step(ended=None), f"gave None as terminated, {FLAG}"),
    (step(cut=np.array([True])), rf"gave bool in the shape \(1,\) as truncated, {FLAG}"),
    (step(info=[1]), r"gave \[1\] as info, where a dictionary is expected"),
    (step(info={"success": np.nan}), rf"gave nan as info\['success'\], {FLAG}"),
    (step(info={"success": "yes"}), rf"gave 'yes' as info\['success'\], {FLAG}"),
]


@pytest.mark.parametrize(("move", "said"), STEPS, ids=[said[:40] for _, said in STEPS])
def test_a_wrong_step_is_the_environments_fault(
    move: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(scripted(monkeypatch, move=move, max_episode_steps=50))
    made.reset(seed=0)
    for _ in range(MOMENT - 1):
        made.step(0)
    with pytest.raises(
        FaultyEnvironmentError,
        match=rf"^the environment Scripted-v0 is at fault: step 3 of an episode {said}",
    ) as caught:
        made.step(0)
    assert caught.value.exit_code == 1
    assert (caught.value.__cause__ is None) is ("raised" not in said)


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (failing(BOOM), "raised RuntimeError: boom"),
        (gives(SEEN), rf"gave float32 in the shape \(3,\), {TWO}"),
        (gives(None), f"gave None, {TWO}"),
        (gives((None, {})), f"gave None as its observation, {SHAPE}"),
        (gives((SEEN, None)), "gave None as info, where a dictionary is expected"),
    ],
)
def test_a_wrong_reset_is_the_environments_fault(
    begin: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(scripted(monkeypatch, begin=begin))
    with pytest.raises(
        FaultyEnvironmentError, match=f"^the environment Scripted-v0 is at fault: reset {said}"
    ):
        made.reset(seed=0)


@pytest.mark.parametrize(
    ("constructor", "kind", "said"),
    [
        (failing(BOOM), FaultyEnvironmentError, "is at fault: its constructor raised RuntimeError"),
        (failing(SystemExit(0)), FaultyEnvironmentError, "its constructor raised SystemExit: 0"),
        (failing(ValueError("no")), ConfigError, "cannot be made (ValueError: no): change its"),
        (failing(ImportError("no x")), ConfigError, "a package that is not installed: no x"),
        (lambda *_: 3, ConfigError, "must inherit from the gymnasium.Env class"),
    ],
)  # fmt: skip
def test_a_constructor_that_fails_is_named(
    constructor: Any, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind) as caught:
        make(scripted(monkeypatch, make=constructor))
    assert "Scripted-v0" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (failing(BOOM), "raised RuntimeError: boom"),
        (gives(None), "gave None, where bytes in the shape"),
        (gives(np.zeros((4, 4, 3))), r"gave float64 in the shape \(4, 4, 3\), where bytes"),
    ],
)
def test_a_wrong_picture_is_the_environments_fault(
    picture: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(scripted(monkeypatch, picture=picture), render_mode="rgb_array")
    made.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match=f"is at fault: render {said}"):
        made.render()


def test_rows_that_learn_and_rows_that_are_recorded_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = EnvironmentConfig(scripted(monkeypatch, move=step(reward=None)))
    rows = EndlessRows(name, 2)
    rows.begin(0)
    for _ in range(MOMENT - 1):
        rows.step(np.zeros(2, np.int64))
    with pytest.raises(FaultyEnvironmentError, match="Scripted-v0 is at fault: step 3 of an epis"):
        rows.step(np.zeros(2, np.int64))
    with pytest.raises(FaultyEnvironmentError, match="Scripted-v0 is at fault: step 3 of an epis"):
        collect(name, recipe("random", name), 2)


@pytest.mark.parametrize(
    "move",
    [
        step(SEEN.tolist()),
        step(SEEN.astype(np.float64)),
        step(np.zeros(3, np.int64)),
        step(reward=np.float32(2)),
        step(reward=np.array(2)),
        step(reward=True),
        step(reward=-3.4e38),
        step(ended=np.False_, cut=np.array(False)),
        step(info={"success": np.True_}),
    ],
)
def test_other_types_of_the_same_numbers_are_taken(
    move: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = scripted(monkeypatch, move=move)
    data = collect(name, recipe("random", EnvironmentConfig(name)), 2)
    assert data.lengths.tolist() == [5, 5]
    seen, paid = move()[:2]
    assert data.episodes[0].observations.dtype == np.float32
    assert data.episodes[0].observations[MOMENT].tolist() == list(seen)
    assert data.episodes[0].rewards[MOMENT - 1] == paid


def test_a_whole_number_that_is_seen_is_one_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numbered(Scripted):
        observation_space = gymnasium.spaces.Discrete(4)

    for begun, fine in ((3, True), (4, False), (-1, False), (1.0, False)):
        made = make(scripted(monkeypatch, make=Numbered, begin=gives((begun, {}))))
        if fine:
            assert made.reset(seed=0)[0] == begun
            continue
        with pytest.raises(FaultyEnvironmentError, match=rf"reset gave {begun} as its observation"):
            made.reset(seed=0)


def test_info_of_any_form_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another at every step, so that it cannot be stacked."""
    lengths = iter(range(99))
    name = scripted(monkeypatch, move=lambda: step(info={"path": np.zeros(next(lengths))})())
    rows = make_vector(EnvironmentConfig(name), 2)
    rows.reset(seed=[0, 1])
    assert [rows.step(np.zeros(2, int))[4] for _ in range(5)] == [{}] * 5


def test_wrappers_that_are_registered_with_it_are_checked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrapper = gymnasium.wrappers.TransformReward.wrapper_spec(func=lambda reward: None)
    made = make(scripted(monkeypatch, additional_wrappers=(wrapper,), max_episode_steps=9))
    made.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match="step 1 of an episode gave None as its rewar"):
        made.step(0)


@pytest.mark.parametrize(
    ("options", "registered", "cut"),
    [
        ({}, {}, LIMIT),
        ({"max_episode_steps": -1}, {"max_episode_steps": 9}, LIMIT),
        ({}, {"max_episode_steps": LIMIT + 2}, LIMIT + 2),
        ({"max_episode_steps": LIMIT + 3}, {}, LIMIT + 3),
        ({"max_episode_steps": 7}, {"max_episode_steps": 9}, 7),
    ],
)
def test_an_episode_without_end_is_cut_where_nobody_says_when(
    options: dict[str, int], registered: dict[str, int], cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(scripted(monkeypatch, length=None, **registered), **options)
    for _ in range(2):
        made.reset(seed=0)
        ends = [made.step(0)[2:4] for _ in range(cut)]
        assert set(ends[:-1]) == {(False, False)}
        assert ends[-1] == (False, True)


def test_what_was_cut_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    name = scripted(monkeypatch, length=None)
    policy = recipe("random", EnvironmentConfig(name))
    said = f"2 of 2 episodes of {name} were cut after 10,000 steps, .*--env.max-episode-steps"
    with pytest.warns(UserWarning, match=said):
        data = collect(name, policy, 2)
    assert data.lengths.tolist() == [LIMIT] * 2
    # not of a limit that somebody set
    collect(EnvironmentConfig(name, (), {"max_episode_steps": LIMIT}), policy, 1)


@pytest.mark.parametrize("mine", [None, "offscreen"])
def test_a_picture_looks_for_no_desktop_unless_the_user_says_which(
    mine: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers: list[str | None] = []

    def picture() -> np.ndarray:
        drivers.append(os.environ.get("SDL_VIDEODRIVER"))
        return np.zeros((4, 4, 3), np.uint8)

    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    if mine is not None:
        monkeypatch.setenv("SDL_VIDEODRIVER", mine)
    made = make(scripted(monkeypatch, picture=picture), render_mode="rgb_array")
    made.reset(seed=0)
    made.render()
    assert set(drivers) == {mine or "dummy"}
    assert os.environ.get("SDL_VIDEODRIVER") == mine
