"""`eval RUN --data ...`: what is said of the data is obeyed, or refused with the reason."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from everyformer.core.config import field_defaults
from everyformer.data.config import DataConfig

SIZES = ("--width", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--steps", "1")
RUNS = {
    "lm": ("gmlp", "--data", "text.txt", "--length", "16"),
    "mlm": ("attention", "--task", "mlm", "--data", "text.txt", "--length", "16"),
    "classify": (
        *("gmlp", "--data", "rated.csv", "--length", "32"),
        *("--data.text-column", "text", "--data.label-column", "label"),
    ),
    "translate": ("transformer", "--data", "pairs.tsv", "--data.languages", "en-de"),
    "pictures": ("gmlp", "--data", "digits"),
    "series": ("gmlp", "--data", "waves"),
    "generated": ("attention", "--data", "copy", "--length", "64"),
    "episodes": ("decision-transformer", "--data", "walks"),
}
OTHER: dict[str, tuple[str, ...]] = {
    "validation": ("0.3",), "seed": ("7",), "tokenizer": ("chars",), "length": ("12",),
    "languages": ("de-en",), "tokens": ("100",), "part": ("test",), "text_column": ("more",),
    "label_column": ("more",), "source_column": ("de",), "target_column": ("en",),
    "header": ("no",), "separator": ("bar",), "unlabelled": ("skip",), "size": ("6",),
    "colour": ("rgb",), "labels": (),
    "small": ("4",), "mask_rate": ("0.4",), "packing": (), "context": ("3",),
    "best": ("0.5",), "delayed": (), "scale": ("3",),
    "symbols": ("40",),
    "depth": ("3",), "options": ("a=1",),
    "encoding": ("utf-16",), "split": ("group", "text"),
}  # fmt: skip
"""another value of every option"""
OBEYED = {
    "lm": "validation length",
    "mlm": "validation seed length mask_rate",
    "classify": "validation seed length text_column",
    "translate": "validation",
    "pictures": "validation seed",
    "series": "seed length",
    "generated": "seed pairs",
    "episodes": "validation seed delayed context",
}
"""options that a measurement depends on"""
SILENT = {("classify", "unlabelled")}
"""what need not show, since no row lacks its label"""


def corpus(words: int) -> str:
    return " ".join(random.Random(0).choices(("a", "warm", "tree", "and", "the", "fox"), k=words))


@pytest.fixture
def files(tree: Path) -> Path:
    words = corpus(600).split()
    lines = [" ".join(words[i : i + 6]) for i in range(0, 300, 6)]
    rated = [f"{line},{'xy'[n % 2]},{line[::-1]}" for n, line in enumerate(lines)]
    (tree / "rated.csv").write_text("\n".join(["text,label,more", *rated, ""]))
    pairs = [f"{line}\t{line.upper()}" for line in lines]
    (tree / "pairs.tsv").write_text("\n".join(["en\tde", *pairs, ""]))
    (tree / "other.txt").write_text(corpus(900))
    return tree


def test_every_option_has_another_value_here() -> None:
    # the cache is a folder, on which no number depends; the source is what is evaluated
    assert {*OTHER, "source", "cache"} == set(field_defaults(DataConfig))


@pytest.mark.full("5 s a kind of data", parts=3)
@pytest.mark.parametrize("kind", RUNS)
def test_an_option_of_the_data_changes_what_is_told_or_is_refused(kind, files, say):
    code, _, err = say("train", *RUNS[kind], *SIZES, "--training.threads", "1", "--out", "run")
    assert code == 0, err
    # with all digits of the numbers
    words = ["eval", "run", "--sequences", "8", "--json"]
    # of a run that could play
    words += ["--data", "walks"] if kind == "episodes" else []
    usual = say(*words)
    assert usual[0] == 0, usual
    for name, value in OTHER.items():
        if (kind, name) in SILENT:
            continue
        flag = f"--data.{name.replace('_', '-')}"
        code, out, err = told = say(*words, flag, *value)
        assert told != usual, f"{flag} is passed over"
        assert code == 0 or name not in OBEYED[kind].split(), err
        if "changes nothing here" in err:
            assert code == 2
            assert err.count("everyformer: ") == 1
            assert "leave it out" in err
            assert out == ""


def test_reasons_name_what_the_run_is(refused: Callable, say: Callable, trained: Callable) -> None:
    run = str(trained("gmlp"))
    told = refused("eval", run, "--tokenizer", "chars")
    reason = "the run reads text with the tokenizer bytes"
    assert told == f"--tokenizer changes nothing here: {reason}; leave it out"
    assert say("eval", run, "--tokenizer", "bytes")[0] == 0
    assert "it is for pictures, and the task is lm" in refused("eval", run, "--data.size", "8")
    told = refused("eval", run, "--lengths", "4", "8", "--length", "12")
    assert told == "--lengths sets how long windows are: leave out --length"


def test_columns_of_the_runs_table_are_not_asked_of_a_text(files: Path, say: Callable) -> None:
    table = ("--task", "lm", "--data", "rated.csv", "--data.text-column", "more", "--length", "16")
    assert say("train", "gmlp", *table, *SIZES, "--out", "run")[0] == 0
    code, _, err = say("eval", "run", "--data", "other.txt")
    assert (code, err.startswith("other: ")) == (0, True)
    # another table is read as the run's was
    (files / "again.csv").write_text((files / "rated.csv").read_text())
    assert say("eval", "run", "--data", "again.csv")[1:] != say("eval", "run", "--data", "text.txt")
    code, _, err = say("eval", "run", "--data", "other.txt", "--data.text-column", "more")
    assert code == 2
    assert "--data.text-column has no meaning for 'other.txt'" in err


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_baseline_answers_what_was_usual_in_training(task, tree, say):
    """Of which the file that is measured on says nothing, were it all of another class."""
    values = {"classify": ("x", "y"), "regress": ("1.5", "9.5")}[task]
    for name, usual in (("rated.csv", 0), ("test.csv", 1)):
        rows = [f"a tree {n},{values[usual if n % 5 else 1 - usual]}" for n in range(60)]
        (tree / name).write_text("\n".join(["text,label", *rows, ""]))
    columns = ("--data.text-column", "text", "--data.label-column", "label", "--length", "12")
    made = say("train", "gmlp", "--task", task, "--data", "rated.csv", *columns, *SIZES,
               "--out", "run")  # fmt: skip
    assert made[0] == 0
    measured = ("eval", "run", "--data", "test.csv", "--data.validation", "1", "--json")
    code, out, err = say(*measured)
    assert code == 0
    assert "always answering" not in err
    assert "Mean of empty" not in err
    found = json.loads(out)["evaluation"]
    if task == "classify":
        assert found["always"] == "x"
        assert found["majority_accuracy"] == pytest.approx(0.2)
    else:
        # the mean of training lies near 3.1, the file's near 7.9
        assert found["mean_mae"] > 5


def test_all_of_another_file_is_measured_and_the_held_out_part_of_the_runs_own(files, say, trained):
    run = str(trained("gmlp"))

    def scored(*words: str) -> tuple[int, str]:
        code, out, err = say("eval", run, *words, "--json")
        assert code == 0, err
        return json.loads(out)["evaluation"]["scored"], err

    size = len((files / "other.txt").read_bytes())
    assert scored("--data", "other.txt")[0] == size - 1
    assert scored("--data", "other.txt", "--data.validation", "0.1")[0] < 0.15 * size
    # the same under another name would be measured on what was learned
    (files / "copy.txt").write_bytes((files / "text.txt").read_bytes())
    own, copied = scored(), scored("--data", "copy.txt")
    assert copied[0] == own[0]
    said = "copy.txt is what the run was trained on: its held-out part is measured"
    assert said in copied[1]
    assert said not in own[1]
    assert scored("--data", "copy.txt", "--data.validation", "0.5")[0] > 3 * own[0]


def test_a_file_too_small_to_hold_some_out_is_measured_whole(files: Path, say: Callable) -> None:
    made = say("train", *RUNS["classify"], *SIZES, "--out", "run")
    assert made[0] == 0
    (files / "few.csv").write_text("text,label,more\na warm tree,x,fox\nthe fox,y,fox\n")
    code, out, err = say("eval", "run", "--data", "few.csv", "--json")
    assert code == 0, err
    assert json.loads(out)["evaluation"]["sequences"] == 2


def test_a_file_that_has_changed_since_training_is_told(files: Path, say: Callable) -> None:
    (files / "grown.txt").write_text(corpus(400))
    words = ("--data", "grown.txt", "--length", "16", *SIZES, "--out", "run")
    assert say("train", "gmlp", *words)[0] == 0

    def told(*words: str) -> bool:
        code, _, err = say("eval", "run", *words)
        assert code == 0, err
        return "grown.txt has changed since the run was trained on it" in err

    assert not told()
    (files / "grown.txt").write_text(corpus(300))
    assert told()
    assert told("--data", "grown.txt")
