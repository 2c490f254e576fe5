"""`show RUN curves`: runs of several seeds, and comparisons, in one figure."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from everyformer.lab.compare.files import RECORD
from everyformer.system.sealed import write_json

Given = tuple[int, str, str]
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--steps", "8", "--batch", "2")
SIZES += ("--length", "8", "--sequences", "1")
RUNS = {"a0": ("--seed", "0"), "a1": ("--seed", "1"), "b0": ("--memory.slots", "0")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from everyformer.cli import main

    home = tmp_path_factory.mktemp("home")
    (home / "text.txt").write_text("a warm tree and a quick fox " * 40)
    for name, more in RUNS.items():
        data = ("--data", str(home / "text.txt"))
        assert main(("train", "gtrxl", *data, *SIZES, *more, "--out", str(home / name))) == 0
    (home / "cmp").mkdir()
    write_json(home / "cmp" / RECORD, {"format": "begun"})
    (home / "saved").mkdir()
    return home


@pytest.fixture(autouse=True)
def there(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def test_runs_that_differ_by_their_seeds_alone_are_one_curve(say, tmp_path):
    words = ("show", "a0", "curves", "--others", "a1", "b0", "--out", str(tmp_path))
    code, out, err = say(*words, "--json")
    assert code == 0, err
    [drawn] = json.loads(out)["pictures"]
    shows = drawn["shows"].partition("every seed. ")[2]
    first, second = shows.split("; ")
    assert first.startswith("gtrxl (a0) ")
    assert "2 seeds) after" in first
    assert second.startswith("gtrxl (b0) ")
    assert "seeds" not in second
    assert (tmp_path / "curves.png").exists()
    assert say("show", "a0", "curves", "--format", "svg")[0] == 0
    assert Path("a0/pictures/curves.svg").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a0", "weights", "--others", "a1"),
         "--others is of 'table' and 'curves', not of 'weights': leave it out"),
        (("a0", "curves", "--text", "a"),
         "--text is of pictures of the inside of a model, not of 'curves'"),
        (("a0", "curves", "--others", "none"), "there is no run at"),
        (("cmp", "curves"), "cmp is a comparison that has not come to a result"),
    ],
)  # fmt: skip
def test_what_has_no_curves_is_refused(words, said, refused):
    assert said in refused("show", *words)


def test_a_saved_model_has_no_curve(refused: Callable[..., str], say: Callable[..., Given]) -> None:
    shutil.rmtree("saved")
    assert say("convert", "a0", "--to", "ours", "--out", "saved")[0] == 0
    assert "saved is a saved model, which does not know how" in refused("show", "saved", "curves")
