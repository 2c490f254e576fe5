"""A task and a kind of data of the user's own: the page's program, in every verb."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from everyformer.cli import main
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import VARIABLE
from everyformer.core.tasks import TASKS
from everyformer.family import info, register

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-task.md"
SIZES = (
    *("--width", "16", "--heads", "2", "--layers", "1", "--length", "16", "--batch", "8"),
    *("--steps", "80", "--lr", "1e-2", "--training.threads", "1"),
)
PLUGINS = ("--plugin", "forecast.py:Series", "--plugin", "forecast.py:NextNumber")

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the program of the page and a wave whose next number the last two
    tell: y[t+1] = 2 cos(1/2) y[t] - y[t-1]."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    (tmp_path / "forecast.py").write_text(code[1], encoding="utf-8")
    np.savetxt(tmp_path / "my.num", 50 + 10 * np.sin(np.arange(600) / 2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_verb_knows_the_task(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", "my.num")
    assert main(["train", "attention", *data, *SIZES, "--out", "run", *PLUGINS]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^baseline +better than giving the last number again", told, re.MULTILINE)
    assert main(["eval", "run", "--json", *PLUGINS]) == 0
    found = json.loads(capsys.readouterr().out)["evaluation"]
    # mean of (y[t+1] - y[t])^2 over a wave of amplitude 10: 200 sin(1/4)^2
    assert found["last_mse"] == pytest.approx(200 * math.sin(0.25) ** 2, rel=0.05)
    assert found["next_mse"] < found["last_mse"] / 4
    assert main(["list", "--task", "next-number", *PLUGINS]) == 0
    listed = capsys.readouterr().out
    assert "aft-conv" in listed
    assert "\nbert" not in listed
    assert main(["predict", "run", "my.num", *PLUGINS]) == 2
    assert "task next-number" in capsys.readouterr().err
    assert TASKS["next-number"].name in info("attention").tasks
    with pytest.raises(ConfigError, match=r"is no member.*register_spec"):
        register(type(TASKS["next-number"]))


def test_a_run_of_a_task_that_is_not_known_says_how_it_is(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "aft-simple", "--data", "my.num", *SIZES, "--out", "run")
    assert main([*words, *PLUGINS]) == 0
    monkeypatch.setenv(VARIABLE, "")
    capsys.readouterr()
    assert main(["eval", "run"]) == 2
    assert "unknown task 'next-number'" in (told := capsys.readouterr().err)
    assert "--plugin" in told


@pytest.mark.full("a comparison")
def test_a_comparison_ranks_by_its_measure(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "attention", "gmlp", "--data", "my.num", *SIZES, "--out", "made")
    assert main([*words, *PLUGINS]) == 0
    results = json.loads((mine / "made" / "results.json").read_text(encoding="utf-8"))
    assert results["metric"] == "next_mse"
    assert "giving the last number again" in results["rows"][0]["baseline_words"]
    assert "squared error" in (mine / "made" / "report.html").read_text(encoding="utf-8")
