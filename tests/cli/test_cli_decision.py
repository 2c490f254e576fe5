"""Decision Transformer from the command line: train, evaluate, record; and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Say
from PIL import Image

from everyformer.cli.show import episodes as shown_episodes
from everyformer.rl import (
    EnvironmentConfig,
    collect,
    read_trajectories,
    recipe,
    write_trajectories,
)
from helpers import overridden

GRAPH = EnvironmentConfig("everyformer/GraphPath-v0", (), {"nodes": 6, "edges": 7, "steps": 6})
TRACK = EnvironmentConfig("everyformer/MemoryTrack-v0", (1,))
SIZES = ("--width", "8", "--layers", "1", "--steps", "3", "--batch", "4", "--data.context", "4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    for name, environment in (("paths", GRAPH), ("tracks", TRACK)):
        write_trajectories(collect(environment, recipe("random", environment), 8), place / name)
    others = EnvironmentConfig(GRAPH.name, (), GRAPH.options | {"steps": 7})
    write_trajectories(collect(others, recipe("random", others), 8), place / "others")
    (place / "long").mkdir()
    for name, steps in (("a", 1001), ("b", 2)):
        last = np.arange(steps) == steps - 1
        seen = np.arange(steps + 1) % 6
        np.savez(place / "long" / f"{name}.npz", observations=seen, actions=seen[1:],
                 rewards=np.zeros(steps), terminations=last, truncations=last & ~last)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def runs(home: Path) -> Path:
    """A run of each kind, and one with neither returns nor a known environment."""
    from everyformer.cli import main

    (home / "bare").mkdir()
    for number, episode in enumerate(read_trajectories(home / "paths").episodes):
        np.savez(home / "bare" / f"{number}.npz", **episode.arrays())
    for name, source, more in (
        ("paths", "paths", ()), ("tracks", "tracks", ("--data.delayed",)),
        ("bare", "bare", ("--model.decision.no-return-to-go",)),
    ):  # fmt: skip
        words = ["train", "decision-transformer", "--data", str(home / source), *SIZES, *more]
        assert main([*words, "--out", str(home / "runs" / name)]) == 0
    return home / "runs"


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home / "minari"))


@pytest.mark.parametrize(("source", "ends"), [("bare", " --env NAME"), ("paths", "")])
def test_what_to_do_next_names_an_environment_where_the_data_do_not(
    source: str, ends: str, runs: Path, say: Say
) -> None:
    words = ("train", "decision-transformer", "--data", source)
    words = (*words, *overridden(SIZES, ("--steps", "1")))
    code, out, _ = say(*words, "--model.decision.no-return-to-go", "--out", f"next-{source}")
    assert code == 0
    assert out.splitlines()[-1].endswith(f"eval next-{source} --episodes 20{ends}")


def test_a_run_is_measured_on_its_data_and_by_playing(runs: Path, say: Say) -> None:
    code, out, err = say("eval", "runs/paths", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["data"]["environment"]["options"] == GRAPH.options
    assert found["evaluation"]["loss"] == found["evaluation"]["action_loss"]
    assert "perplexity" not in found["evaluation"]
    words = ("--target", "-2", "-5.5", "--episodes", "3")
    code, out, err = say("eval", "runs/paths", *words, "--json")
    assert code == 0, err
    played = json.loads(out)
    assert played["environment"] == {"name": GRAPH.name, "mask": [], "options": GRAPH.options}
    assert [(row["target"], row["episodes"]) for row in played["evaluation"]] == [
        (-2, 3),
        (-5.5, 3),
    ]
    for row in played["evaluation"]:
        assert -6 <= row["return"] <= -1
        low, high = row["return_interval"]
        assert low <= row["return"] <= high
    code, out, err = say("eval", "runs/paths", *words)
    assert out.splitlines()[0].split() == ["asked", "for", "episodes", "return", "success", "steps"]
    assert out.splitlines()[2].split()[:2] == ["-2", "3"]


def test_the_best_return_of_the_data_is_asked_for_where_nothing_is_said(
    runs: Path, say: Say
) -> None:
    best = read_trajectories("paths").statistics.return_max
    code, out, err = say("eval", "runs/paths", "--episodes", "1", "--json")
    assert [row["target"] for row in json.loads(out)["evaluation"]] == [best]
    code, out, err = say("eval", "runs/bare", "--env", GRAPH.name, "--env.nodes", "6",
                         "--env.edges=7", "--episodes", "1", "--json")  # fmt: skip
    assert code == 0, err
    assert [row["target"] for row in json.loads(out)["evaluation"]] == [None]
    assert json.loads(out)["environment"]["options"] == {"nodes": 6, "edges": 7}


def test_what_is_hidden_stays_so_and_options_come_on_top(runs: Path, say: Say) -> None:
    code, out, err = say("eval", "runs/tracks", "--env.steps", "20", "--episodes", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["environment"] == {
        "name": TRACK.name, "mask": [1], "options": {"steps": 20},
    }  # fmt: skip


def test_played_episodes_are_a_data_set_and_a_film(runs: Path, say: Say, tmp_path: Path) -> None:
    out_to = str(tmp_path / "played")
    code, out, err = say("generate", "runs/paths", "--episodes", "2", "--target", "-3", "--out",
                         out_to, "--temperature", "0")  # fmt: skip
    assert (code, out) == (0, f"{out_to}\n{out_to}.gif\n"), err
    found = read_trajectories(out_to, GRAPH)
    assert len(found) == 2
    assert found.recipe == "a trained decision-transformer, asked for a return of -3"
    with Image.open(f"{out_to}.gif") as film:
        # pictures that are alike are one that is shown for longer
        shown = []
        for number in range(film.n_frames):
            film.seek(number)
            shown.append(film.info["duration"])
        assert sum(shown) == 250 * (len(found.episodes[0]) + 1)
    code, out, err = say("generate", "runs/paths", "--episodes", "2", "--out", out_to)
    assert (code, out) == (2, "")
    assert f"{out_to} is not empty: choose another --out for the trajectories" in err


def test_a_saved_model_plays_is_measured_and_shown(runs: Path, say: Say) -> None:
    """It knows its states, actions and window, and neither its environment nor its returns."""
    assert say("convert", "runs/paths", "--to", "ours", "--out", "saved")[0] == 0
    there = ("--env", GRAPH.name, "--env.nodes", "6", "--env.edges", "7")
    for words, sentence in (
        (("eval", "saved", "--episodes", "1"), "the environment of the model is not known: name"),
        (("eval", "saved", *there), "does not know the returns of its data: say what to ask for"),
    ):
        code, out, err = say(*words)
        assert (code, out) == (2, "")
        assert sentence in err
    assert say("eval", "saved", *there, "--target", "-3", "--episodes", "1")[0] == 0
    code, out, err = say("eval", "saved", "--data", "paths", "--json")
    assert code == 0, err
    assert (
        json.loads(out)["evaluation"]
        == json.loads(say("eval", "runs/paths", "--json")[1])["evaluation"]
    )
    for target in ("saved", "runs/paths", "decision-transformer"):
        code, out, err = say("show", target, "weights", "--out", "drawn")
        assert code == 0, err
    # a network without layers has nothing inside to draw
    words = ("--data", "paths", *SIZES, "--out", "runs/bc")
    assert say("train", "bc", *words)[0] == 0
    code, out, err = say("show", "runs/bc", "all")
    assert (code, out) == (0, "")
    assert "bc has nothing to show" in err
    assert "bc has no weights to show; it has none" in say("show", "runs/bc", "weights")[2]


@pytest.mark.parametrize(
    ("run", "what", "words", "shows"),
    [
        ("paths", "returns", ("--target", "-5", "-2", "--episodes", "2"),
         "Mean returns of 2 episodes for each return that was asked for"),
        ("bare", "returns",
         ("--env", GRAPH.name, "--env.nodes", "6", "--env.edges", "7", "--episodes", "3"),
         "Returns of 3 episodes, from "),
        ("paths", "film", ("--target", "-3"), "steps that return"),
        ("paths", "attended", (), "Row: a step whose action is chosen"),
        ("bare", "attended", ("--env", GRAPH.name, "--env.nodes", "6", "--env.edges", "7"),
         "Row: a step whose action is chosen"),
    ],
)  # fmt: skip
def test_what_a_run_plays_is_drawn(
    run: str, what: str, words: tuple[str, ...], shows: str, runs: Path, say: Say, tmp_path: Path
) -> None:
    code, out, err = say("show", f"runs/{run}", what, *words, "--out", str(tmp_path), "--json")
    assert code == 0, err
    [drawn] = json.loads(out)["pictures"]
    assert shows in drawn["shows"]
    with Image.open(tmp_path / f"{what}.png") as picture:
        assert picture.width > 100


def test_returns_from_the_worst_of_the_data_to_beyond_the_best_are_asked_for(
    runs: Path, say: Say, tmp_path: Path
) -> None:
    known = read_trajectories("paths").statistics
    low, high = known.return_min, known.return_max
    assert low < high
    words = ("--episodes", "1", "--out", str(tmp_path))
    code, out, err = say("show", "runs/paths", "returns", *words)
    assert code == 0, err
    assert f"for {low:g} to " in out
    assert f"for {high + (high - low) / 4:g}. The best episode of the data has {high:g}." in out


def test_a_run_goes_to_transformers_only_if_it_acts_in_numbers(runs: Path, say: Say) -> None:
    code, _out, err = say("convert", "runs/paths", "--to", "hf", "--out", "theirs")
    assert code == 2
    assert "reads returns-to-go, states and actions that are all numbers" in err


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("eval", "runs/paths", "--target", "abc"), "--target does not take ['abc']"),
    (("eval", "runs/paths", "--env", "everyformer/GraphPth-v0"),
     "unknown environment 'everyformer/GraphPth-v0'; did you mean 'everyformer/GraphPath-v0'?"),
    (("eval", "runs/paths", "--env", "everyformer/MemoryTrack-v0"),
     "the states are 3 numbers, but the model was trained on whole numbers below 6: it is of "
     "another environment"),
    (("eval", "runs/paths", "--env.node", "7"),
     "everyformer/GraphPath-v0 has no option '--env.node'; did you mean '--env.nodes' or"),
    (("eval", "runs/paths", "--episodes", "0"), "'--episodes' must be at least 1, not 0"),
    (("eval", "runs/paths", "--env.max-episode-steps", "1200"),
     "episodes of everyformer/GraphPath-v0 have up to 1,200 steps, but the model knows 1,000 "
     "timesteps: give --env.max-episode-steps 1000, or train one with a larger "
     "--model.decision.table"),
    (("eval", "runs/bare", "--episodes", "2"),
     "the environment of the data is not known: name it with --env"),
    (("eval", "runs/bare", "--env", GRAPH.name, "--target", "3"),
     "--target 3: this decision-transformer reads no return-to-go, so none can be asked for"),
    (("eval", "runs/paths", "--data", "tracks"),
     "tracks is of another environment than the run in runs/paths: the states are 2 numbers, but "
     "the model was trained on whole numbers below 6"),
    (("eval", "runs/paths", "--data", "others"),
     "others is of everyformer/GraphPath-v0 --env.nodes 6 --env.edges 7 --env.steps 7, but the run "
     "in runs/paths was trained on everyformer/GraphPath-v0 --env.nodes 6 --env.edges 7 "
     "--env.steps 6: give data of that one"),
    (("eval", "runs/bare", "--data", "long"),
     "long has episodes of up to 1,001 steps, but the run in runs/bare knows 1,000 timesteps"),
    (("generate", "runs/paths", "--prompt", "hello"),
     "--prompt has no meaning: the decision run in runs/paths plays episodes, in --env NAME and as "
     "many as --episodes says; leave --prompt out"),
    (("eval", "runs/paths", "--episodes", "2", "--data", "others"),
     "--data has no meaning: the decision run in runs/paths plays episodes, in --env NAME and as "
     "many as --episodes says; leave --data out, or all options of playing, to measure it on data"),
    (("generate", "runs/paths", "--target", "1", "2"),
     "episodes are recorded for one --target at a time: give one"),
    (("show", "runs/paths", "weights", "--target", "3"),
     "--target is of 'returns', 'film' and 'attended', not of 'weights': leave it out"),
    (("show", "runs/paths", "film", "--text", "a"), "not of 'film': leave it out"),
    (("show", "runs/paths", "film", "--target", "1", "2"), "asked for one --target: give one"),
    (("show", "decision-transformer", "film"), "'decision-transformer' is no directory of one"),
    (("train", "decision-transformer", "--data", "paths", "--model.decision.table", "3"),
     "the data have episodes of up to 6 steps, but the table of timesteps has 3: raise "
     "--model.decision.table"),
    (("train", "gpt", "--data", "paths"), "member 'gpt' has no task 'decision'"),
    (("train", "decision-transformer", "--data", "minari:no/such-v0"),
     "Minari has no data set 'no/such-v0' on this machine"),
]  # fmt: skip


def test_a_film_that_cannot_be_drawn_is_refused_before_it_is_played(
    runs: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.setattr(shown_episodes, "played_by", lambda *_, **__: pytest.fail("played"))
    code, _, err = say("show", "runs/paths", "film")
    assert code == 2
    assert "needs" in err
    assert "pygame" in err


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_words_are_refused_in_one_sentence(
    words: tuple[str, ...], sentence: str, runs: Path, say: Say
) -> None:
    code, out, err = say(*words)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("everyformer: ")]
    assert len(lines) == 1
    assert sentence in lines[0]


def test_episodes_that_are_wrong_are_refused_in_training(home: Path, say: Say) -> None:
    episode = read_trajectories("paths").episodes[0].arrays()
    steps = len(episode["actions"])
    rewards = episode["rewards"].copy()
    rewards[-1] = np.nan
    for name, changes, sentence in (
        ("unequal", {"observations": episode["observations"][1:]},
         f"there are {steps} observations and {steps} actions"),
        ("unpaid", {"rewards": rewards}, f"rewards holds nan at step {steps - 1}: numbers must"),
        ("empty", {"actions": episode["actions"][:0]}, "the episode is empty: it needs one action"),
    ):  # fmt: skip
        (home / name).mkdir()
        np.savez(home / name / "a.npz", **{**episode, **changes})
        code, out, err = say("train", "decision-transformer", "--data", name)
        assert (code, out) == (2, "")
        assert sentence in err
        assert "a.npz" in err
        assert not (home / "runs" / "decision-transformer").exists()


@pytest.mark.parametrize("package", ["gymnasium", "minari"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, runs: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    words: dict[str, Any] = {
        "gymnasium": ("eval", "runs/paths", "--episodes", "1"),
        "minari": ("train", "decision-transformer", "--data", "minari:a/b-v0"),
    }
    code, out, err = say(*words[package])
    assert (code, out) == (2, "")
    assert package in err
    assert "everyformer[rl]" in err


def test_minari_is_trained_on(home: Path, say: Say) -> None:
    write_trajectories(read_trajectories("paths"), "minari:walks/mine-v0")
    words = ("--data", "minari:walks/mine-v0", *SIZES, "--out", "runs/minari")
    code, _out, err = say("train", "decision-transformer", *words)
    assert code == 0, err
    assert (
        json.loads((home / "runs/minari/config.json").read_text())["data"]["environment"]["options"]
        == GRAPH.options
    )
