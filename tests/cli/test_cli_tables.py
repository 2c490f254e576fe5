"""Tables through the verbs: answers in the form of what was read, half-labelled tables, weights."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Say, Train

WORDS = ("schön", "kühl", "naß")
HEADER = ["nr", "text", "label", "preis", "p(kühl)"]
ROWS = [
    [str(n), f'ein {WORDS[n % 3]}er "Tag"; {n}', WORDS[n % 3], f"{n},5", "x"] for n in range(45)
]


def table(rows: Any, delimiter: str = ";") -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([HEADER, *rows])
    return file.getvalue()


@pytest.fixture
def run(tree: Path, trained: Train) -> str:
    (tree / "days.csv").write_text(table(ROWS))
    return str(trained("attention", "--data", "days.csv", "--steps", "2"))


RUNS = ("runs/file", "runs/flag")
FORMS = {
    "windows-1252": (";", "cp1252", b"nr;text"),
    "UTF-8": (";", "utf-8", b"nr;text"),
    "UTF-8 with its mark": (",", "utf-8-sig", b"\xef\xbb\xbfnr,text"),
    "UTF-16": ("\t", "utf-16-le", b"\xff\xfen\0r\0\t\0"),
    "UTF-16, the other way": ("|", "utf-16-be", b"\xfe\xff\0n\0r\0|"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_comes_back_as_it_was_written(form: str, run: str, say: Say, tree: Path) -> None:
    delimiter, encoding, beginning = FORMS[form]
    mark = "\ufeff" if "16-" in encoding else ""
    (tree / "new.csv").write_bytes((mark + table(ROWS, delimiter)).encode(encoding))
    said = ("--data.encoding", "windows-1252") if encoding == "cp1252" else ()
    code, _, err = say("predict", run, "new.csv", "--out", "out.csv", *said)
    assert code == 0, err
    raw = (tree / "out.csv").read_bytes()
    assert raw.startswith(beginning)
    text = raw.decode(encoding).removeprefix("\ufeff")
    after = [*csv.reader(io.StringIO(text), delimiter=delimiter)]
    added = ["predicted_label", "predicted_probability", "p(kühl)_2", "p(naß)", "p(schön)"]
    assert after[0] == [*HEADER, *added]
    assert "so what is added is 'p(kühl)_2'" in err
    assert [row[:5] for row in after[1:]] == ROWS
    # its prices have decimal commas, and so has what is added where no comma divides cells
    decimal = "." if delimiter == "," else ","
    for row in after[1:]:
        assert all(decimal in cell for cell in row[6:])
        shares = [float(cell.replace(decimal, ".")) for cell in row[6:]]
        of_class = dict(zip(("kühl", "naß", "schön"), shares[1:], strict=True))
        assert sum(of_class.values()) == pytest.approx(1)
        assert max(of_class, key=of_class.__getitem__) == row[5]
        assert of_class[row[5]] == shares[0]
    again = say("predict", run, "out.csv", "--format", "jsonl", *said)[1].splitlines()
    assert json.loads(again[0])["predicted_label_2"] == after[1][5]
    assert json.loads(again[0])["predicted_label"] == after[1][5]


def test_an_answer_that_an_encoding_lacks_is_refused_and_nothing_is_written(
    tree, trained, say, refused
):
    (tree / "greek.csv").write_text("text,label\n" + "ein Tag,α\nzwei Tage,β\n" * 20)
    run = str(trained("attention", "--data", "greek.csv", "--steps", "1"))
    (tree / "old.csv").write_bytes("text\nschön\n".encode("cp1252"))
    words = ("predict", run, "old.csv", "--data.encoding", "cp1252", "--out")
    assert "row 1 or its answer has 'α', which " in refused(*words, "out.csv")
    assert not (tree / "out.csv").exists()
    assert say(*words, "out.jsonl")[0] == 0
    assert "schön" in (tree / "out.jsonl").read_text()


def test_what_is_said_of_the_encoding_is_obeyed(run: str, say: Say, tree: Path) -> None:
    (tree / "old.csv").write_bytes("text\n¿ż\n".encode("cp1250", "replace"))
    said = ("predict", run, "old.csv", "--data.encoding", "cp1250", "--format", "jsonl")
    assert json.loads(say(*said)[1])["text"] == "?ż"
    (tree / "old.txt").write_bytes("süß\n".encode("cp1252"))
    said = ("predict", run, "old.txt", "--data.encoding", "cp1252", "--format", "jsonl")
    assert json.loads(say(*said)[1])["input"] == "süß"


def half(column: int) -> list[list[str]]:
    """The rows, every fifth with an empty cell."""
    return [
        [*row[:column], "" if n % 5 == 2 else row[column], *row[column + 1 :]]
        for n, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize(("column", "task"), [("label", "classify"), ("preis", "regress")])
def test_rows_without_a_label_are_left_out_and_answered_by_predict(
    column, task, tree, trained, say, refused
):
    index = HEADER.index(column)
    (tree / "half.csv").write_bytes(table([*half(index), ["99", "", *[""] * 3]]).encode("cp1252"))
    words = ("attention", "--data", "half.csv", "--task", task, "--data.label-column", column)
    words += ("--data.encoding", "cp1252")
    said = refused("train", *words)
    assert "9 texts without a label: line 4, " in said
    assert "say --data.unlabelled skip" in said
    run = trained(*words, "--steps", "2", "--data.unlabelled", "skip")
    answer = ("half.csv", "--data.encoding", "cp1252", "--out", "out.csv")
    assert say("predict", str(run), *answer)[0] == 0
    text = (tree / "out.csv").read_bytes().decode("cp1252")
    header, *found = csv.reader(io.StringIO(text), delimiter=";")
    assert header[:6] == [*HEADER, "predicted_label" if task == "classify" else "predicted_value"]
    assert [row[:5] for row in found][: len(half(index))] == half(index)
    answers = [row[5] for row in found if row[1]]
    if task == "classify":
        assert set(answers) <= set(WORDS)
    else:
        # as the numbers of the table are written
        assert all("." not in answer and float(answer.replace(",", ".")) for answer in answers)


@pytest.mark.full("trainings, seconds")
def test_weights_of_classes_and_groups_are_flags_and_a_file(tree, say, refused, trained):
    rows = [
        [*row[:2], "rare" if n % 9 == 0 else "common", row[3], f"g{n % 6}"]
        for n, row in enumerate(ROWS)
    ]
    (tree / "days.csv").write_text(table(rows).replace("p(kühl)", "who"))
    (tree / "run.toml").write_text('class_weights = "balanced"\n[data]\nsplit = ["group", "who"]\n')
    days = ("gmlp", "--data", "days.csv")
    flags = ("--class-weights", "balanced", "--data.split", "group", "who")
    trained(*days, "--config", "run.toml", "--out", "runs/file")
    trained(*days, *flags, "--out", "runs/flag")
    configs = [json.loads((run / "config.json").read_text()) for run in map(Path, RUNS)]
    assert configs[0]["run"] == configs[1]["run"]
    assert configs[0]["training"]["class_weights"] == "balanced"
    assert configs[0]["run"]["data"]["split"] == ["group", "who"]
    on = ("train", "--resume", "--out", "runs/flag", "--steps", "4")
    assert say(*on)[0] == 0
    err = say(*on[:-1], "5", "--class-weights", "none")[2]
    [changed] = [line for line in err.splitlines() if "changed since the run began" in line]
    assert "class_weights" in changed
    err = say("train", *days, "--steps", "1", "--out", "runs/other")[2]
    assert "--class-weights balanced lets rare classes count" in err
    for verb in ("train", "compare"):
        said = refused(verb, "gmlp", "--data", "text.txt", "--class-weights", "balanced")
        assert "the task lm predicts no classes" in said
    said = refused("train", "gmlp", "--data", "text.txt", "--data.split", "group", "who")
    assert "has no meaning for the task lm: it is for rows with a class or a number" in said
