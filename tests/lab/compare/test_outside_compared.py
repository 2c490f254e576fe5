"""Whole models of someone else are compared beside members, by the laws first."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_comparisons import Compared

from everyformer.lab.compare import compare as runs
from everyformer.lab.compare import lawful

Compare = Callable[..., Compared]
pytestmark = pytest.mark.usefixtures("forgotten")
FILE = """
from torch import nn


class Net(nn.Module):
    def __init__(self, vocab_size, width, ahead=0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)
        self.ahead = ahead

    def forward(self, x):
        h = self.embed(x)
        return self.head(h.cumsum(1) + self.ahead * h.roll(-1, 1))


def leaks(vocab_size, width):
    return Net(vocab_size, width, ahead=1)


class Batch(Net):
    def forward(self, x):
        return super().forward(x) - self.embed(x).mean()
"""


@pytest.fixture(autouse=True)
def theirs(tree: Path) -> None:
    (tree / "theirs.py").write_text(FILE)


def test_one_that_sees_the_future_is_told_before_it_is_trained_and_in_the_headline(
    compare: Compare,
) -> None:
    members = ("attention", *(f"theirs.py:{name}" for name in ("Net", "leaks", "Batch")))
    made = compare(*members, "--training.steps", "2")
    assert made.code == 0
    assert "theirs.py:leaks breaks the law of causality: output 0 moves by" in made.err
    assert "theirs.py:Net breaks" not in made.err
    headline = made.out.splitlines()[0]
    leaking = "theirs.py:Batch and theirs.py:leaks"
    assert f"Not settled: the loss of {leaking} is not strictly autoregressive" in headline
    rows = {row["member"]: row for row in made.results["rows"]}
    assert {row["status"] for row in rows.values()} == {"done"}
    assert "input 1 is another" in rows["theirs.py:leaks"]["leaks"]
    assert rows["theirs.py:Net"]["leaks"] is None
    assert rows["theirs.py:Net"]["group"] == "your own"
    assert (made.folder / "runs" / "theirs.py-leaks-seed0").is_dir()
    # other laws that are broken stand beside the table
    limits = rows["theirs.py:Batch"]["limits"]
    assert sum(limit.startswith("breaks the law of batch: a row a") for limit in limits) == 1
    assert "theirs.py:Batch breaks the law of batch" in made.err


def test_twins_are_judged_once_and_one_that_cannot_be_made_fails_alone(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no layer of a whole one is timed."""
    judged: list[str] = []
    timed: list[list[str]] = []
    times = runs.LayerTimes
    monkeypatch.setattr(lawful, "_broken", lambda name, causal: judged.append(name) or [])
    monkeypatch.setattr(runs, "LayerTimes", lambda c, m, f: timed.append(m) or times(c, m, f))
    names = ("attention", *(f"theirs.py:{name}" for name in ("Net@one", "Net@two", "Nett")))
    made = compare(*names, "--training.steps", "1")
    assert [Path(name).name for name in judged] == ["theirs.py:Net"]
    assert timed == [["attention"]]
    assert made.row("attention")["status"] == "done"
    assert "has no 'Nett'; did you mean 'Net'?" in made.row("theirs.py:Nett")["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--options", "theirs.py:Net.speed=3"), "unknown option `speed` for member 'theirs.py:N"),
        (("--mixer", "linear"), "to which sizes are given and no mixer ('linear')"),
    ],
)
def test_what_it_cannot_be_given_is_refused(
    compare: Compare, words: tuple[str, ...], said: str
) -> None:
    made = compare("theirs.py:Net", *words, "--training.steps", "1")
    assert said in made.err + str(made.results["rows"] if not made.code else "")
