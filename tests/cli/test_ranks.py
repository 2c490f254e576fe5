"""What one of several processes says: the first everything, the others the error that ends them."""

import json
import sys
from pathlib import Path

import pytest

from everyformer.cli import main, ranks


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_the_second_process_speaks_of_errors_alone_and_torchrun_is_told(
    second, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(ranks.ERRORS, str(tmp_path / "error.json"))
    before = sys.stdout, sys.stderr
    assert main(["list"]) == 0
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")
    assert main(["info", "nobody"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith("everyformer [process 2 of 2]: unknown member 'nobody'")
    told = json.loads((tmp_path / "error.json").read_text())["message"]
    assert told["message"].startswith("unknown member 'nobody'")
    assert told["extraInfo"]["py_callstack"] == told["message"]
    assert int(told["extraInfo"]["timestamp"]) > 1_600_000_000


@pytest.mark.parametrize("rank", ["0", "x", ""])
def test_the_first_process_and_one_of_no_rank_speak(rank, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("everyformer ")


SIZES = ("--width", "8", "--layers", "1", "--heads", "1", "--length", "8", "--batch", "2")
RUN = ("train", "aft-simple", "--data", "text.txt", *SIZES, "--training.threads", "1")


@pytest.mark.parametrize("words", [("--resume auto", "--config a.json"),
                                   ("--config a.toml", "--resume=auto")])  # fmt: skip
def test_resume_auto_begins_a_run_or_goes_on_with_it(words, tree, say):
    Path("a.toml").write_text('resume = "auto"\n')
    Path("a.json").write_text('{"resume": "auto"}')
    for steps, word in zip(("2", "4"), words, strict=True):
        assert say(*RUN, "--steps", steps, "--out", "run", *word.split())[0] == 0
    rows = [json.loads(row) for row in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "evaluation" in row] == [2, 4]


def test_a_file_may_say_what_goes_on_and_the_line_that_it_does_not(tree, say):
    Path("on.toml").write_text('resume = true\nout = "run"\n')
    Path("auto.toml").write_text('resume = "auto"\nout = "run"\n')
    assert say(*RUN, "--steps", "2", "--out", "run")[0] == 0
    # member, data and sizes are the run's
    code, _, err = say("train", "--config", "on.toml", "--steps", "3")
    assert code == 0, err
    assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["step"] == 3
    for file in ("on.toml", "auto.toml"):
        code, _, err = say(*RUN, "--config", file, "--no-resume", "--steps", "2")
        assert code == 2
        assert "is not empty: give --resume" in err
    assert say(*RUN, "--config", "auto.toml", "--no-resume", "--overwrite", "--steps", "2")[0] == 0
    code, _, err = say(*RUN, "--resume", "auto")
    assert code == 2
    assert "--resume auto needs to know the run: give --out" in err
