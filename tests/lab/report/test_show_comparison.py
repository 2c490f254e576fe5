"""`show COMPARISON`: figures, table and page for a paper; what is missing is one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everyformer.cli import main
from everyformer.lab.report.figures import FIGURES
from everyformer.system.sealed import write_json
from report_results import made_up

Say = Callable[..., tuple[int, str, str]]
"""words -> exit code, stdout, stderr"""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(["show", *words])
        return code, *capsys.readouterr()

    return run


def _left(folder: Path, results: dict[str, Any] | None) -> str:
    """What a comparison leaves in ``folder``, without its runs."""
    folder.mkdir()
    record = {"format": "everyformer-comparison-options", "options": {}, "data": ""}
    write_json(folder / "comparison.json", record)
    if results is not None:
        write_json(folder / "results.json", results)
    return str(folder)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def compared(tree: Path) -> str:
    return _left(tree / "cmp", made_up())


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    ("form", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_all_figures_are_drawn_in_every_format(
    form: str, begins: bytes, compared: str, say: Say
) -> None:
    code, out, err = say(compared, "all", "--format", form)
    assert code == 0, err
    files = sorted((Path(compared) / "pictures").iterdir())
    assert [file.name for file in files] == sorted(f"{name}.{form}" for name in FIGURES)
    assert all(file.read_bytes().startswith(begins) for file in files)
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        f"{compared}/pictures/{name}.{form}" for name in FIGURES
    ]
    assert "is taken" not in err


def test_one_figure_is_drawn_and_told_as_json(compared: str, say: Say) -> None:
    code, out, _ = say(compared, "quality", "--out", "fig", "--json")
    [picture] = json.loads(out)["pictures"]
    assert (code, picture["picture"]) == (0, "fig/quality.png")
    assert picture["shows"].startswith("In the order of the table. Bars: 95%")
    assert [file.name for file in Path("fig").iterdir()] == ["quality.png"]


@pytest.mark.parametrize(
    ("words", "file", "holds"),
    [
        ("table", "table.md", "| --- |"),
        ("table --format tex", "table.tex", r"\toprule"),
        ("table --format csv", "table.csv", "member,seed,lr,"),
    ],
)
def test_tables_are_one_file(words: str, file: str, holds: str, compared: str, say: Say) -> None:
    code, out, err = say(compared, *words.split(), "--out", "paper")
    assert code == 0, err
    assert out.startswith(f"paper/{file}\n    ")
    assert [path.name for path in Path("paper").iterdir()] == [file]
    assert holds in (Path("paper") / file).read_bytes().decode("latin-1")


def test_the_tables_of_several_comparisons_are_one_file(
    compared: str, tree: Path, say: Say
) -> None:
    other = _left(tree / "more", made_up(("rope",), qualities=(2.25,)))
    code, out, err = say(compared, "table", "--others", other, "--format", "csv", "--out", "paper")
    assert code == 0, err
    assert "Which of attention or gmlp" in out
    assert "Which of rope" in out
    lines = (tree / "paper/table.csv").read_text("utf-8").splitlines()
    begins = [line.split(",")[:3] for line in lines]
    assert begins[::3] == [
        ["comparison", "member", "seed"],
        ["cmp", "attention", "2"],
        ["cmp", "gmlp", "2"],
        ["more", "rope", "2"],
    ]
    assert "no folder of one" in say(compared, "table", "--others", "none")[2]


def test_what_an_export_lacks_is_one_sentence(compared: str, tree: Path, say: Say) -> None:
    results = made_up()
    for row in results["rows"]:
        row["decode_ms"] = {}
    undecoded = _left(tree / "undecoded", results)
    untrained = _left(tree / "untrained", made_up((), qualities=(), failed={"gmlp": "no"}))
    begun = _left(tree / "begun", None)
    cases = {
        f"{compared} table --format png": "'table' is written as md, tex or csv, not as png",
        f"{compared} all --format md": "'all' is written as png, pdf or svg, not as md",
        "gmlp masks --format csv": "'masks' is written as png, pdf or svg, not as csv",
        "gmlp qualty": "did you mean 'quality'",
        f"{compared} all --text a": "--text is of pictures of the inside of a model",
        "gmlp quality": "has no quality to show",
        "gmlp table": "'gmlp' is no folder of one: `everyformer compare` makes one",
        f"{undecoded} decoding": "has no numbers for 'decoding'; it has quality, cost-training",
        f"{untrained} table": "no member was trained to the end",
        f"{untrained} all": "has no figures, since no member was trained to the end",
        f"{begun} all": "has not come to a result: continue with `everyformer compare --resume",
    }
    for words, said in cases.items():
        code, out, err = say(*words.split())
        last = err.strip().splitlines()[-1]
        assert (code, out) == (2, ""), words
        assert last.startswith("everyformer: ")
        assert said in last
    assert not (Path(compared) / "pictures").exists()


def test_an_unfinished_comparison_is_shown_as_far_as_it_is(tree: Path, say: Say) -> None:
    folder = _left(tree / "half", made_up(waiting=("rope",)))
    assert say(folder, "all")[0] == 0
    assert say(folder, "table")[0] == 0
    assert "Waiting to be trained: rope." in (tree / "half/pictures/table.md").read_text("utf-8")


@pytest.mark.parametrize("words", [("all",), ("table",), ("page",)])
def test_a_comparison_by_a_measure_that_is_gone_is_refused(
    words: tuple[str, ...], tree: Path, say: Say
) -> None:
    code, out, err = say(_left(tree / "old", made_up() | {"metric": "return"}), *words)
    assert (code, out) == (2, "")
    assert "compares by 'return', of a task that left the library: read its report.html" in err
