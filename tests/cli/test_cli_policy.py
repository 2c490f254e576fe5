"""Policies from the command line: train in an environment, measure, record, collect, compare."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Say
from PIL import Image

from everyformer.rl import read_trajectories

TRACK = ("--env", "everyformer/MemoryTrack-v0", "--env.steps", "9", "--env.number", "2")
CART = ("train", "gtrxl", "--env", "CartPole-v1")
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "5")
SIZES += ("--model.policy.horizon", "8", "--model.policy.segment", "4", "--sequences", "3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from everyformer.cli import main

    place = tmp_path_factory.mktemp("home")
    words = ("train", "gtrxl", *TRACK, "--env.mask", "1", *SIZES, "--out", str(place / "track"))
    assert main(words) == 0
    return place


@pytest.fixture(autouse=True)
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def test_a_run_knows_its_environment_and_what_it_reached(home: Path, say: Say) -> None:
    config = json.loads((home / "track" / "config.json").read_text())
    assert config["data"]["task"] == "policy"
    assert config["data"]["environment"]["options"] == {"steps": 9}
    assert config["data"]["environment"]["mask"] == [1]
    assert config["data"]["number"] == 2
    training = config["training"]
    assert (training["schedule"], training["clip"], training["weight_decay"]) == ("linear", 0.5, 0)
    code, out, err = say("eval", "track", "--episodes", "4", "--json")
    assert code == 0, err
    [row] = json.loads(out)["evaluation"]
    assert row["episodes"] == 4
    assert row["return_interval"][0] <= row["return"] <= row["return_interval"][1]
    assert 0 <= row["success"] <= 1
    code, out, _ = say("eval", "track")
    assert out.startswith("played by")
    assert out.splitlines()[2].split()[:3] == ["the", "model", "20"]
    assert out.splitlines()[3].startswith("random actions")


def test_training_tells_returns_over_steps_of_the_environment(home: Path) -> None:
    rows = [
        json.loads(line) for line in (home / "track" / "metrics.jsonl").read_text().splitlines()
    ]
    *steps, last = rows
    assert steps[-1]["tokens"] == 2 * 8 * 5 // 8
    assert {"return", "episodes"} <= steps[-1].keys()
    assert set(steps[-1]["losses"]) == {"value", "entropy"}
    assert last["evaluation"]["loss"] == -last["evaluation"]["return"]


def test_generate_records_episodes_and_a_film(home: Path, say: Say) -> None:
    code, _, err = say("generate", "track", "--episodes", "2", "--json")
    assert code == 0, err
    found = read_trajectories(home / "track" / "episodes")
    assert len(found) == 2
    assert found.recipe == "a trained gtrxl"
    with Image.open(home / "track" / "episodes.gif") as film:
        assert film.format == "GIF"


@pytest.mark.parametrize(
    ("what", "words", "shows"),
    [
        ("attended", ("--episodes", "2"), "of 2 episodes, which lines part"),
        ("returns", ("--episodes", "4"), "Returns of 4 episodes, from "),
        ("film", (), "steps that return"),
    ],
)
def test_what_a_run_plays_is_drawn(
    what: str, words: tuple[str, ...], shows: str, say: Say, tmp_path: Path
) -> None:
    code, out, err = say("show", "track", what, *words, "--out", str(tmp_path), "--json")
    assert code == 0, err
    [drawn] = json.loads(out)["pictures"]
    assert shows in drawn["shows"]
    if what == "attended":
        assert "Marked columns: steps that show what is to be remembered" in drawn["shows"]
    with Image.open(tmp_path / f"{what}.png") as picture:
        assert picture.width > 100


def test_collect_plays_a_run(home: Path, say: Say) -> None:
    words = (TRACK[1], *TRACK[2:4], "--env.mask", "1", "--policy", "track")
    code, _, err = say("collect", *words, "--episodes", "3", "--out", "played")
    assert code == 0, err
    found = read_trajectories(home / "played")
    assert len(found) == 3
    again = say("eval", "track", "--episodes", "3", "--json")[1]
    assert json.loads(again)["evaluation"][0]["return"] == pytest.approx(found.returns.mean())


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_help_tells_how_an_environment_is_named_in_short(verb: str, say: Say) -> None:
    told = " ".join(say(verb, "--help", "all")[1].replace("│", " ").split())
    for short in ("--env NAME for", "--env.mask for", "--env.number for", "--env.NAME VALUE for"):
        assert f"{short} short" in told


def test_resume_needs_no_environment_to_be_named_again(home: Path, say: Say) -> None:
    code, _, err = say("train", "--resume", "--out", "track", "--steps", "6")
    assert code == 0, err
    last = json.loads((home / "track" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "gtrxl", "--env", "CartPol-v1"), "did you mean 'CartPole-v1'"),
        ((*CART, "--env.mask", "4"), "--env.mask 4 is not an entry"),
        ((*CART, "--env.lenth", "4"), "has no option '--env.lenth'"),
        ((*CART, "--data", "text.txt"),
         "--env CartPole-v1 is played in place of data, but --data text.txt is given too"),
        ((*CART, "--tokenizer", "chars"),
         "--data.tokenizer has no meaning for CartPole-v1, which is played and not read"),
        ((*CART, "--task", "lm"),
         "--env names an environment, which the task lm cannot use; it is for policy"),
        (("train", "gtrxl", "--task", "policy"), "the task policy plays in an environment"),
        (("train", "gtrxl", "--env.mask", "1"),
         "--data.env-mask has no meaning for the built-in 'stdlib': it is for an environment"),
        (("train", "bert", "--env", "CartPole-v1"),
         "member 'bert' cannot be a policy, which reads step by step: an encoder reads"),
        ((*CART, "--model.block.dropout", "0.1"), "dropout is not 0"),
        ((*CART, "--batch", "3"), "--env.number 8 is no multiple"),
        ((*CART, "--precision", "bfloat16"), "a policy learns in float32"),
        (("eval", "track", "--target", "1"), "reads no return-to-go"),
        (("eval", "track", "--rolling"), "--rolling is of runs that read a window of steps"),
        (("eval", "track", "--data", "text.txt"),
         "--data has no meaning: the policy run in track plays episodes, in --env NAME and as many "
         "as --episodes says; leave --data out"),
        (("show", "track", "film", "--episodes", "2"), "one episode is drawn, not --episodes 2"),
        (("eval", "track", "--env", "CartPole-v1"), "it is of another environment"),
        (("eval", "track", "--env.render-mode", "painted"), "has no option '--env.render-mode'"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_refused(
    words: tuple[str, ...], said: str, refused: Callable[..., str]
) -> None:
    assert said in refused(*words)


UNPLAYED = {
    "eval": {
        "--data.env": "CartPole-v1", "--tokenizer": "chars", "--length": "9", "--sequences": "3",
        "--batch": "3", "--precision": "bfloat16", "--mode": "sliding", "--streams": "2",
        "--memory.slots": "3", "--lengths": "4", "--out": "a.png", "--store": "x", "--knn.k": "3",
        "--exits.threshold": "0.5", "--search-exits": "3",
        "--bleu": None, "--translations": "x", "--beam": "3",
    },
    "generate": {
        "--prompt": "a", "--prompts": "a.txt", "--stop": "a", "--end-token": "1", "--top-k": "3",
        "--top-p": "0.5", "--min-tokens": "2", "--tokens": "3", "--state": "x", "--images": "2",
        "--class": "a", "--draws": "3", "--beam": "3", "--alpha": "1", "--store": "x",
        "--knn.k": "3", "--exits.threshold": "0.5",
    },
}  # fmt: skip
"""options of texts and images, each with another value than its default"""


@pytest.mark.parametrize(
    ("verb", "flag"), [(verb, flag) for verb, flags in UNPLAYED.items() for flag in flags]
)
def test_options_that_say_nothing_of_what_is_played_are_refused(
    verb: str, flag: str, refused: Callable[..., str]
) -> None:
    value = UNPLAYED[verb][flag]
    said = refused(verb, "track", flag, *([] if value is None else [value]))
    assert said.startswith(f"{flag} has no meaning: the policy run in track plays episodes")


@pytest.mark.parametrize(
    ("name", "space"),
    [("everyformer/Several-v0", "MultiDiscrete"), ("everyformer/Grid-v0", "Box(")],
)
def test_action_spaces_that_no_policy_gives_are_refused(
    name: str, space: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium
    import numpy as np

    class Other(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = (
            gymnasium.spaces.MultiDiscrete([2, 3])
            if space == "MultiDiscrete"
            else gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)
        )

    monkeypatch.setitem(
        gymnasium.registry, name, gymnasium.envs.registration.EnvSpec(id=name, entry_point=Other)
    )
    said = refused("train", "gtrxl", "--env", name)
    assert f"the actions of {name} are {space}" in said
    assert "only Discrete and Box of one dimension" in said


def test_without_gymnasium_the_extra_is_named(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert "everyformer[rl]" in refused(*CART)
