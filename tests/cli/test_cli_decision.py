"""Decision Transformer from the command line: train, evaluate, show; and what is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from commands import Say

from everyformer.data.episodes import Trajectories, read_trajectories
from everyformer.data.episodes.walks import GraphWalk
from everyformer.lab.experiments.worlds import KeyToDoor
from everyformer.system.sealed import write_json
from recorded import as_files, as_minari

GRAPH = GraphWalk(nodes=6, edges=7, steps=6)
SIZES = ("--width", "8", "--layers", "1", "--steps", "3", "--batch", "4", "--data.context", "4")


def walks() -> Trajectories:
    return GRAPH.record(8, 0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("home")
    as_files(walks(), place / "paths")
    as_files(KeyToDoor().record(8, 0), place / "doors")
    (place / "long").mkdir()
    for name, steps in (("a", 1001), ("b", 2)):
        last = np.arange(steps) == steps - 1
        seen = np.arange(steps + 1) % 6
        np.savez(place / "long" / f"{name}.npz", observations=seen, actions=seen[1:],
                 rewards=np.zeros(steps), terminations=last, truncations=last & ~last)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def runs(home: Path) -> Path:
    """A run with returns, one without, and one of a data set of Minari's."""
    from everyformer.cli import main

    for name, source, more in (
        ("paths", str(home / "paths"), ()), ("late", str(home / "doors"), ("--data.delayed",)),
        ("bare", str(home / "paths"), ("--model.decision.no-return-to-go",)),
    ):  # fmt: skip
        words = ["train", "decision-transformer", "--data", source, *SIZES, *more]
        assert main([*words, "--out", str(home / "runs" / name)]) == 0
    return home / "runs"


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home / "minari"))


def test_a_run_is_measured_on_recorded_episodes(runs: Path, say: Say) -> None:
    code, out, err = say("eval", "runs/paths", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["data"]["environment"] is None
    assert found["data"]["returns"]["episodes"] == 8
    assert found["evaluation"]["loss"] == found["evaluation"]["action_loss"]
    assert "perplexity" not in found["evaluation"]
    code, out, err = say("train", "decision-transformer", "--data", "paths", *SIZES, "--out", "r")
    assert (code, out.splitlines()[-1].split()[-2:]) == (0, ["eval", "r"]), err


@pytest.mark.full("draws every picture of a run, seconds")
def test_a_saved_model_is_measured_and_shown(runs: Path, say: Say) -> None:
    """It knows its states, actions and window, and not its data."""
    assert say("convert", "runs/paths", "--to", "ours", "--out", "saved")[0] == 0
    code, out, err = say("eval", "saved")
    assert (code, out) == (2, "")
    assert "does not know its data" in err
    code, out, err = say("eval", "saved", "--data", "paths", "--json")
    assert code == 0, err
    own = json.loads(say("eval", "runs/paths", "--json")[1])
    assert json.loads(out)["evaluation"] == own["evaluation"]
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


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("convert", "runs/paths", "--to", "hf", "--out", "theirs"),
     "reads returns-to-go, states and actions that are all numbers"),
    (("eval", "runs/paths", "--episodes", "3"), "unknown option '--episodes'"),
    (("eval", "runs/paths", "--env", "CartPole-v1"), "unknown option '--env'"),
    (("generate", "runs/paths"),
     "has the task decision: only lm, seq2seq, pixels and super-resolution runs generate"),
    (("predict", "runs/paths"),
     "runs/paths has the task decision, which acts: everyformer.generation.acting.DecisionPolicy"),
    (("eval", "runs/paths", "--data", "doors"),
     "doors is of another environment than the run in runs/paths: the states are 7 numbers, but "
     "the model was trained on whole numbers below 6"),
    (("eval", "runs/paths", "--data", "long"),
     "long has episodes of up to 1,001 steps, but the run in runs/paths knows 1,000 timesteps"),
    (("train", "decision-transformer", "--data", "paths", "--model.decision.table", "3"),
     "the data have episodes of up to 6 steps, but the table of timesteps has 3: raise "
     "--model.decision.table"),
    (("train", "gpt", "--data", "paths"), "member 'gpt' has no task 'decision'"),
    (("train", "decision-transformer", "--data", "minari:no/such-v0"),
     "Minari has no data set 'no/such-v0' on this machine"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_wrong_words_are_refused_in_one_sentence(words, sentence, runs, say):
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


def test_a_missing_package_is_named_with_its_extra(say, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    code, out, err = say("train", "decision-transformer", "--data", "minari:a/b-v0")
    assert (code, out) == (2, "")
    assert "minari" in err
    assert "everyformer[rl]" in err


def test_minari_is_trained_on_and_data_of_another_environment_refused(home: Path, say: Say) -> None:
    pole, other = "CartPole-v1", "CartPole-v0"
    for name, environment in (("mine", pole), ("theirs", other)):
        recorded = dataclasses.replace(walks(), environment=environment)
        as_minari(recorded, f"walks/{name}-v0")
    run = ("--data", "minari:walks/mine-v0", *SIZES, "--out", "runs/minari")
    code, _out, err = say("train", "decision-transformer", *run)
    assert code == 0, err
    file = home / "runs/minari/config.json"
    assert json.loads(file.read_text())["data"]["environment"] == pole
    sentence = f"is of {other}, but the run in runs/minari was trained on {pole}: give data of that"
    assert sentence in say("eval", "runs/minari", "--data", "minari:walks/theirs-v0")[2]
    # as earlier versions wrote it
    values = json.loads(file.read_text())
    values["data"]["environment"] = {"name": pole, "mask": [], "options": {}}
    write_json(file, {name: value for name, value in values.items() if name != "digest"})
    assert sentence in say("eval", "runs/minari", "--data", "minari:walks/theirs-v0")[2]
    assert say("eval", "runs/minari", "--data", "minari:walks/mine-v0")[0] == 0
