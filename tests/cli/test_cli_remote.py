"""The command line on runs at other places; ``memory://`` stands for them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from commands import Refused, Say

from everyformer.system.remote import local_folder

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


@pytest.mark.full("seconds each", parts=3)
def test_a_comparison_goes_on_from_another_machine(
    say: Say, tree: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "memory://bucket/compared"
    words = ("gmlp", "attention", "--data", "text.txt", *SIZES, "--training.threads", "1")
    code, out, err = say("compare", *words, "--steps", "2", "--out", place)
    assert code == 0, err
    assert f"report  {place}/report.html" in out
    # the page at the end, which says more than those on the way
    page = local_folder(place) / "report.html"
    assert store.cat_file("/bucket/compared/report.html") == page.read_bytes()
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tree / "another machine"))
    code, again, err = say(
        "compare", *words, "--resume", "--seeds", "1", "--steps", "2", "--out", place
    )
    assert code == 0, err
    assert again.splitlines()[:4] == out.splitlines()[:4]
    trained = store.info("/bucket/compared/runs/gmlp-seed0/result.json")
    code, out, err = say("compare", *words, "--resume", "--steps", "4", "--out", place, "--json")
    assert code == 0, err
    assert {row["steps"] for row in json.loads(out)["rows"]} == {4}
    assert store.info("/bucket/compared/runs/gmlp-seed0/result.json") != trained
    # what it found, by the verbs that take a comparison
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tree / "a third"))
    code, out, err = say("show", place, "table", "--out", "drawn")
    assert code == 0, err
    assert "gmlp" in (tree / "drawn" / "table.md").read_text()
    code, out, err = say("eval", place, "--json")
    assert code == 0, err
    assert "is a comparison: its best" in err
    code, _, err = say("eval", f"{place}/runs/gmlp-seed0", "--json")
    assert code == 0, err
    assert "is not empty" in say("compare", *words, "--steps", "2", "--out", place)[2]
    assert say("compare", "rope", *words[2:], "--overwrite", "--steps", "1", "--out", place)[0] == 0
    assert not store.exists("/bucket/compared/runs/gmlp-seed0")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("eval", "memory://bucket/none"), "there is no run at memory://bucket/none"),
        (("generate", "memory://bucket/none"), "there is no run at memory://bucket/none"),
        (("convert", "memory://bucket/none", "--out", "x"), "holds no config.json"),
        (("eval", "sr://bucket/run"), "nothing is known of places that begin with sr://"),
        (("compare", "--resume", "--out", PLACE), "there is no comparison in memory://bucket/run"),
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
