"""A comparison's folder stands for its best run, the folder of a training for the run in it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Say

from everyformer.lab.compare.files import write_result
from everyformer.system.sealed import read_json, write_json

FORMAT = "everyformer-comparison"


@pytest.fixture
def compared(trained: Callable[..., Path], tree: Path) -> Path:
    """What a comparison of aft-full (worse) and gmlp with two seeds (the second better) leaves."""
    folder, made = tree / "both", trained()
    runs = []
    for member, seed, loss in (("aft-full", 0, 3.0), ("gmlp", 0, 2.5), ("gmlp", 1, 2.0)):
        place = f"runs/{member}-seed{seed}"
        shutil.copytree(made, folder / place / "run")
        found = {"status": "done", "evaluation": {"loss": loss}}
        runs.append({"member": member, "seed": seed, "folder": place, **found})
    rows = [{"member": member, "status": "done"} for member in ("gmlp", "aft-full")]
    results = {"format": FORMAT, "metric": "loss", "rows": rows, "runs": runs, "waiting": []}
    write_json(folder / "results.json", results)
    record = {"format": "everyformer-comparison-options", "options": {}, "data": ""}
    write_json(folder / "comparison.json", record)
    return folder


@pytest.mark.full("a comparison, seconds")
def test_a_comparison_means_its_best_run(compared: Path, say: Say) -> None:
    told = f"{compared} is a comparison: its best, gmlp (seed 1), is taken\n"
    lines = {
        "generate": ("--tokens", "2"),
        "eval": (),
        "show": ("spatial", "--out", "pictures"),
        "convert": ("--to", "program", "--out", "out.pt2"),
    }
    for verb, words in lines.items():
        code, _, err = say(verb, str(compared), *words)
        assert code == 0, err
        assert err.count(told) == 1, verb
    words = ("--data", "text.txt", "--steps", "1", "--batch", "4", "--out", "more")
    code, _, err = say("train", "--from", str(compared), *words)
    assert code == 0, err
    assert told in err


def test_the_folder_of_a_training_means_the_run_in_it(compared: Path, say: Say) -> None:
    outer = compared / "runs" / "aft-full-seed0"
    code, out, err = say("generate", str(outer), "--tokens", "4")
    assert code == 0, err
    assert say("generate", str(outer / "run"), "--tokens", "4")[1] == out
    assert "comparison" not in err


@pytest.mark.full("a comparison and a training, seconds")
def test_a_run_that_was_trained_on_since_its_comparison_says_so(compared: Path, say: Say) -> None:
    outer, inside = compared / "runs" / "gmlp-seed1", compared / "runs" / "gmlp-seed1" / "run"
    done: Any = {"status": "done", "steps": 3}
    for place in (outer, compared / "runs" / "gmlp-seed0"):
        write_result(place, done)
    told = (
        "this run was trained on to step 5 since the comparison, whose table and report are of "
        "step 3\n"
    )
    ways = [
        ("eval", str(compared)),
        ("generate", str(outer), "--tokens", "2"),
        ("predict", str(inside), "a text"),
        ("show", str(compared), "spatial", "--out", "pictures"),
    ]
    assert not any("trained on" in say(*words)[2] for words in ways)
    code, _, err = say("train", "gmlp", "--resume", "--out", str(inside), "--steps", "5")
    assert code == 0, err
    for words in ways:
        code, _, err = say(*words)
        assert code == 0, err
        assert err.count(told) == 1, words
    # another one of the comparison was not
    assert "trained on" not in say("eval", str(compared / "runs" / "gmlp-seed0"))[2]


def test_a_comparison_without_a_result_names_its_runs(compared, refused):
    path = compared / "results.json"
    results = read_json(path, FORMAT)
    changes = ({"waiting": ["gmlp"]}, {"rows": [{"member": "gmlp", "status": "failed"}]})
    for change in changes:
        write_json(path, results | change)
        told = refused("generate", str(compared))
        assert str(compared / "runs" / "gmlp-seed1") in told
        assert "--resume" in told
    path.unlink()
    assert str(compared / "runs" / "aft-full-seed0") in refused("eval", str(compared))
    shutil.rmtree(compared / "runs")
    assert "it has no run yet" in refused("eval", str(compared))


def test_help_of_eval_names_the_runs_own_data(trained: Callable[..., Path], say: Say) -> None:
    def default(*words: str) -> str:
        page = " ".join(say("eval", *words, "--help", "all")[1].replace("│", " ").split())
        return page.partition("--data STR")[2].partition("(default: ")[2].partition(")")[0]

    run = str(trained())
    assert default(run) == "text.txt"
    assert default() == "'what the run was trained on'"
    Path("eval.json").write_text(f'{{"run": "{run}"}}', encoding="utf-8")
    assert say("eval", "--config", "eval.json")[1] == say("eval", run)[1]
