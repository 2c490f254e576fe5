"""`eval --each`: what a run finds strange in a log stands first."""

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from commands import Say, Train

ODD = "zq~#@ }{ kernel panic"


def log(lines: int, odd: int | None = None) -> str:
    draw = random.Random(lines)
    text = [f"INFO {draw.choice(('get', 'put'))} /index ok" for _ in range(lines)]
    if odd is not None:
        text[odd - 1] = ODD
    return "".join(f"{line}\n" for line in text)


@pytest.fixture
def run(tree: Path, trained: Train) -> str:
    (tree / "log.txt").write_text(log(800), encoding="utf-8")
    words = ("--data", "log.txt", "--length", "32", "--steps", "40", "--lr", "0.02", "--batch", "8")
    return str(trained("aft-local", *words, "--width", "32"))


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_an_odd_line_comes_first_and_all_bits_are_those_of_the_evaluation(run, say, tree, refused):
    (tree / "new.log").write_text(log(40, odd=23), encoding="utf-8")
    told: dict[str, Any] = {}
    for each in ("line", "document"):
        words = ("eval", run, "--data", "new.log", "--each", each, "--out", f"{each}.csv", "--json")
        code, out, err = say(*words)
        assert code == 0, err
        told[each] = json.loads(out)["evaluation"]
    # side by side, tokens at the start of a window would have nothing before them
    assert (told["line"]["stride"], told["line"]["window"]) == (16, 32)
    lines, [document] = table("line.csv"), table("document.csv")
    assert [line["line"] for line in lines] != [str(n) for n in range(1, 41)]
    assert (lines[0]["line"], lines[0]["text"]) == ("23", ODD)
    assert sorted(int(line["line"]) for line in lines) == [*range(1, 41)]
    order = [float(line["bits_per_byte"]) for line in lines]
    assert order == sorted(order, reverse=True)
    assert order[0] > 2 * order[1]
    total = told["line"]["loss"] * told["line"]["scored"] / math.log(2)
    assert sum(float(line["bits"]) for line in lines) == pytest.approx(total, rel=1e-5)
    assert float(document["bits"]) == pytest.approx(total, rel=1e-5)
    assert (
        f"bits of every line, the strangest first: {run}/each-line.csv"
        in say("eval", run, "--data", "new.log", "--each", "line")[2]
    )
    assert Path(run, "each-line.csv").exists()
    for words, said in {
        "--sequences 3": "--each reads the whole text once, in order: leave out --sequences",
        "--lengths 8": "--each reads the whole text once, in order",
        "--out a.png": "give a name that ends in .csv",
    }.items():
        assert said in refused("eval", run, "--data", "new.log", "--each", "line", *words.split())


def test_rows_of_a_table_are_documents(run: str, say: Say, tree: Path) -> None:
    rows = [{"text": line} for line in log(6, odd=4).splitlines()]
    (tree / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    code, _, err = say("eval", run, "--data", "new.jsonl", "--each", "document", "--out", "a.csv")
    assert code == 0, err
    first, *others = table("a.csv")
    assert (first["document"], first["text"]) == ("4", ODD)
    assert {row["document"] for row in others} == {"1", "2", "3", "5", "6"}


def test_a_run_that_reads_no_running_text_has_no_lines(say, tree, refused):
    (tree / "log.txt").write_text(log(80), encoding="utf-8")
    words = ("--task", "mlm", "--width", "16", "--layers", "1", "--heads", "2", "--length", "16")
    code, _, err = say("train", "attention", "--data", "log.txt", "--steps", "1", *words)
    assert code == 0, err
    told = refused("eval", "runs/attention", "--each", "line")
    assert "data of the task mlm: leave" in told
    assert "--each" in told
