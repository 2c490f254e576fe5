"""Environments of a user's own from the command line: faults, episodes without end, signals."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from commands import Say

from everyformer.rl.build import LIMIT
from everyformer.rl.folder import read_trajectories
from scripted import scripted

NAME = "Scripted-v0"
TRAIN = ("train", "gtrxl", "--env", NAME, "--env.number", "2", "--steps", "1", "--batch", "2",
         "--width", "8", "--layers", "1", "--heads", "2", "--sequences", "3",
         "--model.policy.horizon", "8", "--model.policy.segment", "4")  # fmt: skip
VERBS = {
    "train": TRAIN,
    "eval": ("eval", "run"),
    "generate": ("generate", "run", "--out", "out"),
    "collect": ("collect", NAME, "--out", "out"),
    "collect by a run": ("collect", NAME, "--policy", "run", "--out", "out"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from everyformer.cli import main

    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        scripted(patch)
        assert main((*TRAIN, "--out", str(place / "run"))) == 0
    return place


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(home)
    yield
    assert not (home / "out").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_fault_of_an_environment_ends_a_job_in_its_name(
    verb: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted(monkeypatch, move=lambda: (None, 1.0, False, False, {}))
    words = (*TRAIN, "--out", str(tmp_path / "run")) if verb == "train" else VERBS[verb]
    assert refused(*words, code=1).startswith(
        f"the environment {NAME} is at fault: step 3 of an episode gave None as its observation"
    )


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "train"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_playing_at_once(
    verb: str, number: signal.Signals, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def move() -> None:
        calls.append(None)
        os.kill(os.getpid(), number)

    scripted(monkeypatch, length=None, move=move)
    code, out, _ = say(*VERBS[verb])
    assert (code, out, len(calls)) == (128 + number, "", 1)


def test_a_signal_ends_an_evaluation_after_training_with_the_last_step_saved(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Step 3 comes twice while two rows are learned from, and then in the evaluation."""
    run, kept = tmp_path / "run", []
    calls: list[None] = []

    def move() -> None:
        calls.append(None)
        if len(calls) == 3:
            kept.extend(path.name for path in (run / "checkpoints").iterdir())
            os.kill(os.getpid(), signal.SIGINT)

    scripted(monkeypatch, length=None, move=move)
    code, _, err = say(*TRAIN, "--out", str(run))
    assert code == 130
    assert "stopped after step 1; go on with: everyformer train --resume --out" in err
    assert kept == ["step-00000001"]
    # the other rows end the step in which the signal came
    assert len(calls) == 2 + 3


@pytest.mark.filterwarnings("default")
def test_an_episode_without_end_is_cut_and_said_to_be(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted(monkeypatch, length=None)
    code, out, err = say("collect", NAME, "--episodes", "1", "--out", str(tmp_path / "o"), "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] == LIMIT
    # which Minari has no words for
    assert str(read_trajectories(tmp_path / "o").environment) == NAME
    assert f"1 of 1 episodes of {NAME} were cut after {LIMIT:,} steps" in err


@pytest.mark.parametrize("verb", ["train", "eval", "generate", "collect"])
def test_help_has_the_limit_of_steps(verb: str, say: Say) -> None:
    told = " ".join(say(verb, "--help", "all")[1].replace("│", " ").split())
    assert f"or {LIMIT} where it has none" in told
