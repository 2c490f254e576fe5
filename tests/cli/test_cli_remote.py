"""The command line on runs at other places; ``memory://`` stands for them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from commands import Refused, Say

PLACE = "memory://bucket/run"
SIZES = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--batch", "4")


@pytest.fixture(autouse=True)
def store(tree: Path) -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


def train(say: Say, *words: str, member: str = "rope") -> dict[str, Any]:
    given = ("--data", "text.txt", *SIZES, "--training.threads", "1", "--json")
    code, out, err = say("train", member, *given, *words)
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_every_verb_takes_a_run_at_a_place(
    say: Say, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = train(say, "--steps", "3", "--out", PLACE)
    here = train(say, "--steps", "3", "--out", "run")
    assert (away["run"], away["loss"]) == (PLACE, here["loss"])
    assert PLACE in away["next"]
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tree / "another machine"))
    for words in (("eval", "{}", "--json"), ("generate", "{}", "--tokens", "5", "--seed", "1")):
        code, found, err = say(*(word.format(PLACE) for word in words))
        assert code == 0, err
        _, expected, _ = say(*(word.format("run") for word in words))
        assert found.replace(PLACE, "run") == expected
    assert say("eval", PLACE, "--average", "1", "--json")[0] == 0


def test_a_run_goes_on_from_anywhere_and_begins_where_there_is_none(
    say: Say, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, count in enumerate(("2", "4")):
        monkeypatch.setenv("EVERYFORMER_CACHE", str(tree / f"machine{number}"))
        away = train(say, "--steps", count, "--out", PLACE, "--resume", "auto")
    train(say, "--steps", "2", "--out", "run")
    here = train(say, "--steps", "4", "--out", "run", "--resume")
    assert away["loss"] == here["loss"]


def test_a_run_starts_from_one_at_a_place_and_is_converted_there_and_back(
    say: Say, tree: Path, store: Any
) -> None:
    train(say, "--steps", "2", "--out", PLACE, member="gpt")
    begun = train(say, "--steps", "2", "--out", "run", "--from", PLACE, member="gpt")
    assert begun["loss"] > 0
    code, _, err = say("convert", PLACE, "--to", "hf", "--out", "hf")
    assert code == 0, err
    code, _, err = say("convert", "hf", "--out", "memory://bucket/model")
    assert code == 0, err
    assert store.exists("/bucket/model/config.json")
    assert not store.exists("/bucket/model/.lock")
    # and back from there, of the model that was saved
    code, _, err = say("convert", "memory://bucket/model", "--to", "hf", "--out", "hf2")
    assert code == 0, err
    weights = [(tree / name / "model.safetensors").read_bytes() for name in ("hf", "hf2")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("eval", "memory://bucket/none"), "there is no run at memory://bucket/none"),
        (("generate", "memory://bucket/none"), "there is no run at memory://bucket/none"),
        (("convert", "memory://bucket/none", "--out", "x"), "holds no config.json"),
        (("eval", "sr://bucket/run"), "nothing is known of places that begin with sr://"),
        (("compare", "rope", "gmlp", "--data", "text.txt", "--out", PLACE), "no folder or file of"),
        (("train", "rope", "--data", "s3://bucket/text"), "no folder or file of this machine"),
        (("train", "rope", "--data", "text.txt", "--out", PLACE, "--resume"), "there is no run"),
    ],
)
def test_what_is_refused_in_one_sentence(
    words: tuple[str, ...], told: str, refused: Refused
) -> None:
    assert told in refused(*words)


def test_a_missing_package_is_named_before_anything_is_trained(
    refused: Refused, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    words = ("train", "rope", "--data", "text.txt", *SIZES, "--out", "s3://bucket/run")
    assert "pip install 'everyformer[cloud]'" in refused(*words)
    assert not [path for path in (tree / "cache").rglob("*") if path.name == "metrics.jsonl"]
