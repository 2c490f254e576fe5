"""Episodes collected from the command line are those of Python; what is refused."""

import json
from pathlib import Path

import pytest
from commands import Say

from everyformer.rl import EnvironmentConfig, collect, read_trajectories, recipe

MAZE = "everyformer/TMaze-v0"
RECIPES = [
    (("--policy", "mixed", "--env.length", "4", "--seed", "3"), "mixed", {"length": 4}, (), 3),
    (("--policy", "expert", "--env.mask", "1"), "expert", {}, (1,), 0),
    ((), "random", {}, (), 0),
]


@pytest.mark.parametrize(("words", "tier", "options", "mask", "seed"), RECIPES)
def test_what_is_collected_is_what_python_collects(
    words: tuple[str, ...],
    tier: str,
    options: dict[str, int],
    mask: tuple[int, ...],
    seed: int,
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = say("collect", MAZE, *words, "--episodes", "5", "--out", "mazes", "--json")
    assert code == 0, err
    told = json.loads(out)
    environment = EnvironmentConfig(MAZE, mask, options)
    expected = collect(environment, recipe(tier, environment), 5, seed)
    assert read_trajectories("mazes", environment) == expected
    assert told["episodes"] == 5
    assert told["steps"] == sum(len(episode) for episode in expected.episodes)
    assert told["return"] == pytest.approx(sum(e.total for e in expected.episodes) / 5)


def test_a_run_plays_too(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--width", "8", "--layers", "1", "--steps", "2", "--batch", "2")
    assert say("collect", MAZE, "--env.length", "3", "--episodes", "4", "--out", "mazes")[0] == 0
    code, _, err = say("train", "decision-transformer", "--data", "mazes", *sizes, "--out", "run")
    assert code == 0, err
    code, out, err = say(
        "collect", MAZE, "--env.length", "3", "--policy", "run", "--episodes", "3", "--out", "own",
        "--target", "4", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["episodes"] == len(read_trajectories("own")) == 3


def test_an_id_is_written_among_minaris_own(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert say("collect", MAZE, "--episodes", "2", "--out", "minari:mazes/two-v0")[0] == 0
    assert (tmp_path / "mazes" / "two-v0" / "data" / "main_data.hdf5").is_file()
    assert len(read_trajectories("minari:mazes/two-v0")) == 2


REFUSED = [
    ((MAZE, "--policy", "best"), "--policy best is neither random, medium, expert nor mixed nor"),
    ((MAZE, "--noise", "0.3"), "--noise=0.3 beside the recipe 'random'"),
    ((MAZE, "--target", "3"), "--target 3 asks a run for a return"),
    (("CartPole-v7",), "CartPole"),
    (("everyformer/TMaz-v0",), "everyformer/TMaze-v0"),
    ((MAZE, "--env.lenth", "3"), "--env.length"),
    ((MAZE, "--episodes", "0"), "'--episodes' must be at least 1, not 0"),
    ((MAZE, "--out", "full"), "full is not empty: choose another --out"),
    ((MAZE, "--policy", "full"), "full"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_collected_is_refused(
    words: tuple[str, ...], said: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("kept")
    code, out, err = say("collect", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert (tmp_path / "full" / "note.txt").read_text() == "kept"
