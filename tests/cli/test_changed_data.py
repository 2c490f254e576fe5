"""A run's own data: found from anywhere, and told where they are not what it was trained on."""

import json
import random
from pathlib import Path

import pytest

from everyformer.cli import main
from everyformer.cli.eval_data import same_place
from everyformer.cli.trained import open_run

TINY = ("--width", "8", "--layers", "1", "--heads", "1", "--steps", "2", "--length", "16")
WORDS = "has changed since the run was trained on it"


def rows(seed: int, count: int = 40) -> str:
    draw = random.Random(seed)
    return "text,label\n" + "".join(
        f"{''.join(draw.choices('abc', k=6))},{'xy'[n % 2]}\n" for n in range(count)
    )


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with table.csv and a run that was trained on it, by its relative path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(rows(0))
    assert main(["train", "attention", "--data", "table.csv", *TINY, "--out", "run"]) == 0
    return tmp_path


def test_every_verb_that_reads_changed_data_says_so_and_eval_that_it_is_worth_nothing(
    trained, capsys
):
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["changed"] is False
    (trained / "table.csv").write_text(rows(1))
    said = {}
    verbs = ("eval run", "eval run --data table.csv", "eval run --json", "predict run --json")
    for words in (*verbs, "show run confusion --out pictures"):
        assert main(words.split()) == 0, words
        said[words], err = capsys.readouterr()
        assert WORDS in err, words
    assert json.loads(said["eval run --json"])["data"]["changed"] is True
    last = said["eval run"].splitlines()[-1]
    assert last.startswith("no measure of what the run can do")


def test_data_of_a_relative_path_are_found_from_another_folder(trained, capsys, monkeypatch):
    other = trained / "other"
    other.mkdir()
    (other / "table.csv").write_text(rows(2))
    monkeypatch.chdir(other)
    assert open_run("../run").data.source == str(trained / "table.csv")
    for words in ("eval ../run", "eval ../run --data ../table.csv", "predict ../run"):
        capsys.readouterr()
        assert main(words.split()) == 0
        told = capsys.readouterr().err
        assert "40 texts" in told
        assert WORDS not in told
    (trained / "table.csv").unlink()
    assert open_run("../run").data.source == "table.csv"
    assert main(["eval", "../run"]) == 0
    assert WORDS in capsys.readouterr().err


@pytest.mark.parametrize("named_like_it", [True, False])
def test_a_run_goes_on_from_another_folder_and_back(trained, monkeypatch, named_like_it):
    other = trained / "other"
    other.mkdir()
    if named_like_it:
        (other / "table.csv").write_text(rows(2))
    for steps, folder, run in ((3, other, "../run"), (4, trained, "run"), (5, other, "../run")):
        monkeypatch.chdir(folder)
        assert main(["train", "--resume", "--out", run, "--steps", str(steps)]) == 0
        kept = json.loads((trained / "run" / "config.json").read_text())
        assert kept["training"]["steps"] == steps
    monkeypatch.chdir(other)
    refused = main(["train", "--resume", "--out", "../run", "--steps", "6", "--data", "table.csv"])
    assert refused == 2


def test_names_of_built_in_data_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy").mkdir()
    assert main(["train", "attention", "--data", "copy", *TINY[:-2], "--out", "run"]) == 0
    assert open_run("run").data.source == "copy"


def test_one_file_by_several_names_is_one_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a")
    for other, same in (("a", True), (str(tmp_path / "a"), True), ("link", True), ("b", False),
                        ("none", False), ("s3://a", False)):  # fmt: skip
        assert same_place("a", other) == same
    assert same_place("none", "none")
