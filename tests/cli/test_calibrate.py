"""`everyformer calibrate`: what is written, kept, refused; and where tokens leave afterwards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everyformer.cli.trained import open_run
from everyformer.cli.verbs.calibrate import CalibrateOptions, _prompts
from everyformer.data.config import DataConfig
from everyformer.lab.exits.certificate import Certificate
from helpers import overridden

FAST = [
    *("--tokens", "3", "--prompt-length", "4", "--prompts", "60", "--delta", "0.5"),
    *("--thresholds", "0.9", "0.5", "0.02"),
]
MEMBER = ("--layers", "3")


@pytest.fixture
def calm(trained: Callable[..., Path]) -> str:
    return str(trained("calm", *MEMBER))


@pytest.mark.full("seconds each", parts=3)
def test_a_promise_is_kept_with_the_run(say: Any, calm: str) -> None:
    code, out, err = say("calibrate", calm, *FAST, "--json")
    assert code == 0, err
    found = json.loads(out)
    certificate = found["certificate"]
    assert [step["threshold"] for step in certificate["steps"]] == [0.9, 0.5, 0.02]
    assert (certificate["n"], certificate["tokens"], certificate["metric"]) == (60, 3, "tokens")
    assert certificate["delta"] == 0.5
    assert found["costs"]["layers"] == 3
    assert 1 <= found["depths"]["0.02"] <= found["depths"]["0.9"] <= 3
    assert found["depths"]["None"] == 3
    kept = json.loads((Path(calm) / "certificate.json").read_text())
    assert kept["threshold"] == certificate["threshold"]
    # said, and used
    code, out, err = say("eval", calm, "--sequences", "4", "--json")
    assert certificate["statement"] in err
    asked = json.loads(out)["evaluation"]["mean_depth"]
    _, out, _ = say("eval", calm, "--sequences", "4", "--json", "--exits.threshold",
                    str(certificate["threshold"]))  # fmt: skip
    assert json.loads(out)["evaluation"]["mean_depth"] == asked
    _, out, _ = say("eval", calm, "--sequences", "4", "--json", "--exits.full")
    assert json.loads(out)["evaluation"]["mean_depth"] == 3
    for words, said in (
        (("3", "--temperature", "0"), ""),
        (("3",), "This text draws its tokens (--temperature 0 takes the likeliest), so nothing"),
        (("4", "--temperature", "0"), "This text has 4 tokens, so nothing of it is promised."),
        (("4",), "takes the likeliest) and has 4 tokens, so nothing"),
    ):
        told = say("generate", calm, "--tokens", *words)[2]
        assert certificate["statement"] in told
        assert said in told
        assert ("nothing of it is promised" in told) == bool(said)
    code, out, err = say("show", calm, "certificate", "--json")
    [picture] = json.loads(out)["pictures"]
    assert Path(picture["picture"]).is_file()


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("threshold", ["1", "0.9999"])
def test_exits_that_save_nothing_promise_nothing(say: Any, calm: str, threshold: str) -> None:
    """By 1 no token may leave, and of 0.9999 a model of three steps is never so sure."""
    code, out, err = say("calibrate", calm, *FAST[:8], "--thresholds", threshold)
    assert code == 0, err
    told = [out, *(say(verb, calm, *more)[2] for verb, more in (
        ("eval", ("--sequences", "2")), ("generate", ("--tokens", "2"))
    )), say("show", calm, "certificate")[1]]  # fmt: skip
    for text in told:
        assert "No token ever leaves early, so exits save nothing: " in text
        assert f"Lower --thresholds than {threshold} may let some" in text
        assert "The full model is used" in text
        assert "probability at least" not in text
        assert "splits" not in text
    assert "--exits.full" in out.splitlines()[-1]
    # said before the table, and once
    assert out.startswith("No token ever leaves early")
    assert out.count("No token ever leaves early") == 1


@pytest.mark.full("seconds each", parts=3)
def test_a_threshold_by_which_no_token_left_is_not_asked_for(say: Any, calm: str) -> None:
    """Told so of 0, by which all leave, the certificate lets none leave."""
    assert say("calibrate", calm, *FAST[:6], "--delta", "0.99", "--thresholds", "0")[0] == 0
    file, depths = Path(calm) / "certificate.json", []
    for known in (Certificate.read(file), replace(Certificate.read(file), depth=1.0)):
        known.write(file)
        _, out, _ = say("eval", calm, "--sequences", "2", "--json")
        depths.append(json.loads(out)["evaluation"]["mean_depth"])
    assert depths == [1, 3]


@pytest.mark.full("seconds each", parts=3)
def test_the_same_calibration_writes_the_same_file(say: Any, calm: str) -> None:
    files = []
    for _ in range(2):
        assert say("calibrate", calm, *FAST)[0] == 0
        files.append((Path(calm) / "certificate.json").read_bytes())
    assert files[0] == files[1]


@pytest.mark.full("seconds each", parts=3)
def test_prompts_are_lines_or_pieces_of_other_texts(say: Any, calm: str, tree: Path) -> None:
    (tree / "lines.txt").write_text("the quick fox\n\nand a tree\n" * 40, encoding="utf-8")
    fingerprints = set()
    for words in (("--lines",), (), ("--prompt-length", "5"), ("--seed", "4", "--prompts", "59")):
        data = ("--data", "lines.txt", *words)
        code, out, err = say("calibrate", calm, *overridden(FAST, data), "--json")
        assert code == 0, err
        assert f" prompts, drawn by --seed {4 if '--seed' in words else 0}" in err
        fingerprints.add(json.loads(out)["certificate"]["data"])
    assert len(fingerprints) == 4


def test_prompts_are_drawn_from_all_lines(calm: str, tree: Path) -> None:
    """The first of a sorted file are like one another, and the promise would be of them alone."""
    lines = sorted(f"line {number}" for number in range(90))
    (tree / "lines.txt").write_text("\n".join(lines))
    some = []
    for seed in (0, 0, 1):
        data = DataConfig(source="lines.txt")
        options = CalibrateOptions(run=calm, data=data, lines=True, prompts=60, seed=seed)
        some.append([bytes(one.tokens).decode() for one in _prompts(open_run(calm), options)])
    assert some[0] == some[1] != some[2]
    for drawn in some:
        assert len(set(drawn)) == 60
        assert set(drawn) < set(lines)
        # of those behind the first 60 a third of 60, within four standard errors
        assert 11 < len(set(drawn) - set(lines[:60])) < 29


@pytest.mark.full("seconds each", parts=3)
def test_stopping_at_the_first_failure(say: Any, calm: str) -> None:
    strict = ["--metric", "exact", "--p-value", "binomial", "--delta", "0.05", "--first-failure"]
    code, out, err = say("calibrate", calm, *FAST[:6], "--thresholds", "0.5", "0.1", "0.02",
                         "0.01", *strict, "--json")  # fmt: skip
    assert code == 0, err
    steps = json.loads(out)["certificate"]["steps"]
    assert all(step["p"] <= 0.05 for step in steps[:-1])


@pytest.mark.full("seconds each", parts=3)
def test_a_certificate_of_another_model_is_refused(say, refused, trained, calm):
    assert say("calibrate", calm, *FAST)[0] == 0
    other = trained("depth-adaptive", *MEMBER)
    (other / "certificate.json").write_bytes((Path(calm) / "certificate.json").read_bytes())
    assert "another model" in refused("generate", str(other), "--tokens", "2")
    damaged = (Path(calm) / "certificate.json").read_text().replace("0.5", "0.9", 1)
    (Path(calm) / "certificate.json").write_text(damaged)
    assert "changed or damaged" in refused("eval", calm)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--prompts", "10"), "at least 59 by 'hoeffding-bentkus'"),
        (("--thresholds", "0.5", "0.9"), "must fall, the safest first"),
        (("--thresholds", "1.5"), "at least 0 and at most 1"),
        (("--delta", "0"), "above 0 and below 1"),
        (("--prompt-length", "4000"), "--prompt-length or --tokens"),
        (("--lines", "--consistency", "risk", "--data", "text.txt"), "have nothing behind them"),
        (("--data", "nothing.txt"), "no file or folder"),
    ],
)
def test_what_is_refused(words, told, refused, calm):
    usual = ("--prompt-length", "4", "--tokens", "2")
    assert told in refused("calibrate", calm, *overridden(usual, words))
    exits = ("--exits.full", "--exits.threshold", "0")
    assert "give one of them" in refused("eval", calm, *exits)
    assert not (Path(calm) / "certificate.json").exists()


def test_runs_without_exits_have_nothing_to_calibrate(refused, trained):
    plain = str(trained("attention"))
    assert "no early exits" in refused("calibrate", plain)
    assert "no early exits" in refused("eval", plain, "--exits.threshold", "0.5")
    assert "no early exits" in refused("generate", plain, "--exits.full")
    assert "no certificate" in refused("show", plain, "certificate")


@pytest.mark.full("seconds each", parts=3)
def test_other_data_than_the_certificates_are_told(say, trained, calm, tree):
    told = "other data than these, of which it promises nothing"
    other = tree / "other.txt"
    other.write_text("another text, of other words than the first one had.\n" * 40)
    assert say("calibrate", calm, *FAST)[0] == 0
    assert told not in say("eval", calm, "--sequences", "2")[2]
    assert told in say("eval", calm, "--sequences", "2", "--data", str(other))[2]
    assert say("calibrate", calm, *FAST, "--data", str(other))[0] == 0
    assert told in say("eval", calm, "--sequences", "2")[2]
    assert told not in say("eval", calm, "--sequences", "2", "--data", str(other))[2]
    assert told not in say("eval", calm, "--sequences", "2", "--exits.full")[2]


def test_a_search_of_thresholds_is_kept_and_drawn(say, refused, calm):
    assert "eval " in refused("show", calm, "pareto")
    code, out, err = say("eval", calm, "--search-exits", "4", "--sequences", "4", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["thresholds"] for one in found["tried"]] == [[], [0.8], [0.6], [0.4], [0.2]]
    assert found["tried"][0]["depth"] == 3
    assert Path(found["figure"]).is_file()
    _, out, _ = say("show", calm, "pareto", "--json")
    [picture] = json.loads(out)["pictures"]
    assert Path(picture["picture"]).is_file()
    first = f"{found['front'][0]['depth']:.2f} layers and a loss of {found['front'][0]['loss']:.4f}"
    many = f"Of 5 settings {len(found['front'])} are beaten by none: from "
    assert picture["shows"].startswith(many)
    assert first in picture["shows"]
    assert "not of 'pareto': leave it out" in refused("show", calm, "pareto", "--text", "a")
    file = Path(calm) / "exit-search.json"
    file.write_text(file.read_text().replace("0.8", "0.7"))
    assert "changed or damaged" in refused("show", calm, "pareto")
    assert "leave out --exits" in refused("eval", calm, "--search-exits", "2", "--exits.full")
