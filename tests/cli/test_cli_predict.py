"""`predict` and `eval` of runs that answer, as a user runs them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Refused, Say, Train

import everyformer as ef
from everyformer.training.saved import load_model


@pytest.fixture
def days(tree: Path) -> Path:
    """A table of texts with labels, numbers and an identity each."""
    words = ("warm", "cold", "wet") * 20
    rows = [f"{n},a {word} day,{word},{n}.5" for n, word in enumerate(words)]
    (tree / "days.csv").write_text("\n".join(["id,text,label,price", *rows]) + "\n")
    return tree


@pytest.fixture
def run(days: Path, trained: Train) -> str:
    """A run that classifies its texts."""
    return str(trained("attention", "--data", "days.csv", "--steps", "2"))


def test_sentences_are_answered_in_order_with_their_probabilities(run: str, say: Say) -> None:
    code, out, err = say("predict", run, "a wet day", "a cold day", "--top", "3", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"] == run
    for one, text in zip(found["predictions"], ("a wet day", "a cold day"), strict=True):
        assert one["input"] == text
        assert sorted(c["label"] for c in one["top"]) == ["cold", "warm", "wet"]
        assert sum(c["probability"] for c in one["top"]) == pytest.approx(1)
        assert one["label"] == one["top"][0]["label"]
    out = say("predict", run, "a wet day")[1]
    assert out.split()[:3] == ["input", "label", "probability"]
    assert found["predictions"][0]["label"] in out


def test_a_table_comes_back_with_columns_added(run: str, say: Say, days: Path) -> None:
    code, out, err = say("predict", run, "days.csv", "--out", "new.csv", "--batch", "7")
    assert (code, out) == (0, "")
    assert "60 predictions in new.csv" in err
    before = [*csv.DictReader(io.StringIO(Path("days.csv").read_text()))]
    after = [*csv.DictReader(io.StringIO(Path("new.csv").read_text()))]
    added = [{k: row.pop(k) for k in ("predicted_label", "predicted_probability")} for row in after]
    for row, one in zip(after, added, strict=True):
        of_class = {name: float(row.pop(f"p({name})")) for name in ("cold", "warm", "wet")}
        assert sum(of_class.values()) == pytest.approx(1)
        assert max(of_class, key=of_class.__getitem__) == one["predicted_label"]
        assert max(of_class.values()) == float(one["predicted_probability"])
    assert after == before
    assert all(one["predicted_label"] in ("warm", "cold", "wet") for one in added)
    say("predict", run, "days.csv", "--out", "new.jsonl")
    lines = [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]
    assert [one["predicted_label"] for one in lines] == [one["predicted_label"] for one in added]
    assert list(lines[0]) == ["id", "text", "label", "price", *added[0]]
    # in batches of as many, since sums of another shape round differently
    printed = say("predict", run, "days.csv", "--format", "csv", "--batch", "7")[1]
    assert printed == Path("new.csv").read_text()


def test_without_inputs_the_held_out_part_is_read_and_agrees_with_eval(run: str, say: Say) -> None:
    lines = [json.loads(x) for x in say("predict", run, "--format", "jsonl")[1].splitlines()]
    found = json.loads(say("eval", run, "--json")[1])["evaluation"]
    assert len(lines) == found["scored"]
    right = [one["target"] == one["label"] for one in lines]
    assert sum(right) / len(right) == pytest.approx(found["accuracy"])
    assert len(say("predict", run, "--sequences", "2", "--format", "csv")[1].splitlines()) == 3


def test_eval_prints_measures_beside_the_majoritys(run: str, say: Say) -> None:
    code, out, err = say("eval", run)
    assert code == 0, err
    found = json.loads(say("eval", run, "--json")[1])
    measures = found["evaluation"]
    for name, called in (("balanced_accuracy", "balanced accuracy"), ("macro_f1", "macro F1")):
        [line] = [line for line in out.splitlines() if line.startswith(called)]
        assert f"{measures[name]:.4g}" in line
        assert line.endswith(f"{measures[f'majority_{name}']:.4g}")
    names = found["data"]["classes"]
    assert f"always '{names[measures['majority']]}'" in out
    assert [row["rows"] for row in measures["by_class"]] == [2, 2, 2]
    assert sum(map(sum, measures["confusion"])) == 6
    assert sum(row["rows"] for row in measures["calibration"]) == 6


def test_train_prints_the_table_of_eval(days: Path, trained: Train, say: Say) -> None:
    """Raw names (majority_balanced_accuracy) stood there."""
    words = ("gmlp", "--data", "days.csv", "--steps", "2", "--layers", "1", "--width", "8")
    code, out, err = say("train", *words, "--heads", "2", "--out", "runs/table")
    assert code == 0, err
    assert "majority_" not in out
    [head] = [line for line in out.splitlines() if line.startswith("measure")]
    assert head.endswith("always training's commonest")
    shown = [line.split() for line in say("eval", "runs/table")[1].splitlines()]
    for name in ("balanced accuracy", "macro F1", "calibration error (15 bins)"):
        [line] = [line for line in out.splitlines() if line.startswith(name)]
        assert line.split() in shown
    assert "baseline  " in out
    assert "everyformer predict runs/table 'your text'" in out
    # many classes are shown by the lowest F1
    rows = "".join(f"text {n % 21} {n},{chr(97 + n % 21)}\n" for n in range(210))
    (days / "many.csv").write_text(f"text,label\n{rows}")
    out = say("eval", str(trained("gmlp", "--data", "many.csv", "--steps", "1")))[1]
    assert "the 20 classes of 21 with the lowest F1" in out
    assert "true, and answered" not in out


def test_numbers_are_predicted_and_measured(days: Path, trained: Train, say: Say) -> None:
    words = ("--data", "days.csv", "--task", "regress", "--data.label-column", "price")
    run = str(trained("attention", *words, "--steps", "2"))
    lines = [json.loads(x) for x in say("predict", run, "--format", "jsonl")[1].splitlines()]
    errors = [abs(one["value"] - one["target"]) for one in lines]
    code, out, err = say("eval", run)
    assert code == 0, err
    found = json.loads(say("eval", run, "--json")[1])["evaluation"]
    assert sum(errors) / len(errors) == pytest.approx(found["mae"], rel=1e-5)
    [line] = [line for line in out.splitlines() if line.startswith("RMSE")]
    assert line.endswith(f"{found['mean_rmse']:.4g}")
    assert "always the mean" in out
    header = say("predict", run, "a day", "--format", "csv")[1].splitlines()[0]
    assert header == "input,value"


def test_each_of_several_numbers_is_measured_by_itself(tree, trained, say):
    """The first number is large and easy, the second is noise; each is told in its own unit."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 4, 2)).astype("float32")
    y = np.stack((1e6 * (5 + x[:, :, 0].sum(1)), 0.01 * rng.standard_normal(200)), 1)
    np.savez(tree / "two.npz", x=x, y=y)
    run = str(trained("attention", "--data", "two.npz", "--steps", "100", "--lr", "1e-2"))
    lines = [json.loads(one) for one in say("predict", run, "--format", "jsonl")[1].splitlines()]
    found = json.loads(say("eval", run, "--json")[1])["evaluation"]
    code, out, err = say("eval", run)
    assert code == 0, err
    table = out[out.index("\nnumber ") :].splitlines()[3:5]
    for index, one in enumerate(found["by_number"]):
        off = [abs(line["value"][index] - line["target"][index]) for line in lines]
        assert one["mae"] == pytest.approx(sum(off) / len(off), rel=1e-4)
        names = (p + n for n in ("mae", "rmse", "r2") for p in ("", "mean_"))
        assert table[index].split() == [str(index + 1), *(f"{one[name]:.4g}" for name in names)]
    assert found["by_number"][0]["rmse"] > 1e3 > 1 > found["by_number"][1]["rmse"]
    assert out.rstrip().endswith(
        "better than always giving the mean for 1 of 2 numbers; not surely for number 2"
    )


def test_language_models_say_what_comes_next(trained: Train, say: Say) -> None:
    run = str(trained("aft-simple"))
    code, out, err = say("predict", run, "a warm", "the qui", "--top", "2", "--json")
    assert code == 0, err
    first, second = json.loads(out)["predictions"]
    assert len(first["tokens"]) == len(second["tokens"]) == 2
    assert first["tokens"][0]["probability"] >= first["tokens"][1]["probability"]
    out = say("predict", run, "a warm")[1]
    assert len(out.splitlines()) == 2 + 5
    assert repr(first["tokens"][0]["token"]) in out
    held_out = say("predict", run, "--sequences", "3", "--top", "1", "--format", "csv")[1]
    assert held_out.splitlines()[0] == "input,target,token,probability"
    assert len([*csv.reader(io.StringIO(held_out))]) == 4


def test_masked_models_fill_in(trained: Train, say: Say) -> None:
    run = str(trained("bert", "--task", "mlm"))
    code, out, err = say("predict", run, "a [MASK]arm tr___", "--top", "2", "--json")
    assert code == 0, err
    [found] = json.loads(out)["predictions"]
    assert [len(mask) for mask in found["masks"]] == [2, 2]
    assert say("predict", run, "a ___ tree", "--top", "1")[1].splitlines()[2].startswith("a ___")
    assert say("predict", run, "--sequences", "2", "--top", "1")[0] == 0


def test_stdin_is_read_line_by_line(run: str, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.TextIOWrapper(io.BytesIO("\ufeffa wet day\n\nün cold\n".encode()))
    monkeypatch.setattr("sys.stdin", lines)
    out = say("predict", run, "-", "--format", "csv")[1]
    assert [row[0] for row in csv.reader(io.StringIO(out))] == ["input", "a wet day", "", "ün cold"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    code, _, err = say("predict", run, "-")
    assert (code, "stdin is not UTF-8" in err) == (2, True)


REFUSED = [
    (("gone.csv",), "no file or folder 'gone.csv'"),
    (("",), "a text is empty"),
    (("a", "--top", "0"), "at least 1"),
    (("a", "--out", "x.txt"), "ends in .csv or .jsonl"),
    (("a", "--out", "x.csv", "--json"), "--json prints all"),
    (("a", "--sequences", "2"), "--sequences is for held-out rows"),
    (("days.csv", "--data.text-column", "txt"), "did you mean 'text'"),
    (("days.csv", "--batch", "0"), "at least 1"),
]


def test_wrong_words_are_refused(run: str, say: Say) -> None:
    for words, said in REFUSED:
        code, out, err = say("predict", run, *words)
        assert (code, out) == (2, ""), words
        assert said in err.splitlines()[-1]


def test_a_row_that_cannot_be_read_leaves_no_file_and_one_without_text_is_not_counted(run, say):
    Path("few.csv").write_text("id,text\n1,a wet day\n2,\n3,a cold day\n")
    err = say("predict", run, "few.csv", "--out", "few-too.csv")[2]
    assert "1 row without text and so without a prediction" in err
    assert "2 predictions in few-too.csv" in err
    Path("bad.csv").write_text("text,n\n" + "a day,1\n" * 2000 + '"open,2\n')
    Path("new.csv").write_text("kept")
    Path("odd.jsonl").write_text('{"text": "a"}\n{"text": "b", "more": [1]}\n')
    code, _, err = say("predict", run, "odd.jsonl", "--format", "csv")
    assert code == 2
    assert "row 2 has a field 'more' that the first row has not" in err
    out = say("predict", run, "odd.jsonl", "--format", "jsonl")[1].splitlines()
    assert json.loads(out[1])["more"] == [1]
    code, _, err = say("predict", run, "bad.csv", "--out", "new.csv")
    assert code == 2
    assert "bad.csv" in err.splitlines()[-1]
    assert Path("new.csv").read_text() == "kept"


def test_runs_that_cannot_predict_are_refused(run, tree, say, refused):
    ef.save(load_model(run), "saved")
    assert "does not say where its data is" in refused("predict", "saved")
    assert "has no tokenizer" in refused("predict", "saved", "a")
    assert "there is no run" in refused("predict", "gone", "a")
    model: Any = ef.create_model("attention", "pixels", width=8, heads=1, layers=1, image=(1, 4, 4))
    ef.save(model, "pixels")
    assert "everyformer generate" in refused("predict", "pixels", "a.png")
    broken: Any = load_model(run)
    torch.nn.init.constant_(broken.pool.head.bias, torch.nan)
    ef.save(broken, "broken")
    assert "not finite numbers" in refused("predict", "broken", "a", code=1)


def test_other_classes_of_equal_number_are_refused(run: str, refused: Refused, say: Say) -> None:
    rows = "".join(f"words number {n},{('neg', 'pos', 'no')[n % 3]}\n" for n in range(30))
    Path("other.csv").write_text(f"text,label\n{rows}")
    told = refused("eval", run, "--data", "other.csv")
    assert "'other.csv' has the labels neg, pos and no, but the model knows cold, warm" in told
    assert "take such rows out" in told


@pytest.mark.parametrize("present", [("wet",), ("wet", "cold")])
def test_data_with_some_of_the_classes_are_measured_by_the_runs_own(present, run, refused, say):
    rows = [f"a {present[n % len(present)]} day,{present[n % len(present)]}" for n in range(30)]
    Path("some.csv").write_text("\n".join(["text,label", *rows, ""]))
    code, out, err = say("eval", run, "--data", "some.csv", "--json")
    assert code == 0, err
    found = json.loads(out)
    measures, classes = found["evaluation"], found["data"]["classes"]
    assert classes == ["cold", "warm", "wet"]
    # the commonest of the run's training, the first of three equal ones
    assert measures["always"] == "cold"
    assert measures["majority_accuracy"] == ("cold" in present) * 0.5
    # of which the best constant of these data is not beaten, were it all that there is
    assert measures["held_out_always"] == min(present)
    assert measures["held_out_majority_accuracy"] == 1 / len(present)
    told = say("eval", run, "--data", "some.csv")[1]
    assert f"not surely better than always answering '{min(present)}'" in told
    wanted = [30 // len(present) * (name in present) for name in classes]
    assert [row["rows"] for row in measures["by_class"]] == wanted
    assert [sum(row) for row in measures["confusion"]] == wanted
    recalls = [row["recall"] for row in measures["by_class"] if row["rows"]]
    assert measures["balanced_accuracy"] == pytest.approx(sum(recalls) / len(present))
    assert say("eval", run, "--data", "some.csv")[0] == 0
    Path("some.csv").write_text("\n".join(["text,label", *rows, "a dry day,dry", ""]))
    told = refused("eval", run, "--data", "some.csv")
    assert "has the label dry, but the model knows cold, warm and wet alone" in told


@pytest.mark.parametrize(
    ("mark", "ending", "read", "written"),
    [(b"", "csv", ";", ";"), (b"\xef\xbb\xbf", "csv", ",", ","), (b"", "tsv", "\t", ",")],
)
def test_a_table_comes_back_with_its_delimiter_and_byte_order_mark(
    mark, ending, read, written, run, say, days
):
    lines = [["day", "text"], ["1", "a warm tree"], ["2", "a wet fox, too"], ["3", "sun"]]
    cells = [[f'"{cell}"' if read in cell else cell for cell in line] for line in lines]
    text = "\n".join(read.join(line) for line in cells)
    (days / f"mine.{ending}").write_bytes(mark + text.encode())
    assert say("predict", run, f"mine.{ending}", "--out", "back.csv")[0] == 0
    raw = (days / "back.csv").read_bytes()
    assert raw.startswith(mark + f"day{written}text{written}predicted_".encode())
    rows = [*csv.reader(io.StringIO(raw.decode("utf-8-sig")), delimiter=written)]
    assert [row[:2] for row in rows] == lines
