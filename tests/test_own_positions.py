"""Positions of the user's own: the page's programs, by option and in Python, and wrong ones."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer import family
from everyformer.cli import main
from everyformer.core.errors import ConfigError, PluginError
from everyformer.genes.positions import POSITIONS

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-member.md"
SIZES = (
    *("--width", "16", "--heads", "2", "--layers", "1", "--length", "16", "--batch", "2"),
    *("--steps", "3", "--training.threads", "1", "--training.evaluate-sequences", "2"),
)
TURN = """

class Turn(Position):
    name, acts_on = "turn", "queries-keys"

    def rotate(self, x, positions, lengths=None):
        return x * (1 - 2 * (positions % 2))[:, None, :, None]
"""
pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """mine.py with the page's positions, and one that acts on queries and keys."""
    section = PAGE.read_text(encoding="utf-8").split("## A position of your own")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    (tmp_path / "mine.py").write_text(code[1] + TURN, encoding="utf-8")
    (tmp_path / "text.txt").write_text("the quick brown fox " * 60, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "mine.py"
    for name in ("saw", "fading", "turn"):
        POSITIONS.forget(name)


@pytest.mark.full("a quarter of a minute each; the page's mixer keeps every law every time")
@pytest.mark.parametrize("name", ["saw", "fading", "turn"])
def test_the_page_s_positions_keep_every_law(
    name: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("verify", "--position", name, "--plugin", f"mine.py:{name.title()}", "--json")
    code = main([*words])
    found = {(r["member"], r["law"]): r["status"] for r in json.loads(capsys.readouterr().out)}
    assert code == 0
    assert {member for member, _ in found} == {name}
    assert set(found.values()) == {"held", "exempt"}
    held = {law for (_, law), status in found.items() if status == "held"}
    assert held >= {"equation", "causality", "streaming", "padding", "compiles", "devices"}


def test_every_verb_knows_it(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, plugin = ("--data", "text.txt"), ("--plugin", "mine.py:Saw")
    for words, said in (
        (("list",), "Sawteeth: channel n of the embedding counts modulo n + 2"),
        (("info", "saw"), "your own"),
        (("train", "saw", *data, *SIZES, "--out", "run"), "3 steps"),
        (("train", "aft-conv", "--position", "saw", *data, *SIZES, "--out", "other"), "3 steps"),
        (("generate", "run", "--prompt", "the", "--tokens", "3"), "the"),
    ):
        assert main([*words, *plugin]) == 0
        assert said in capsys.readouterr().out
    assert main(["verify", "--position", "sow", *plugin]) == 2
    told = capsys.readouterr().err
    assert re.search(r"unknown position 'sow'; did you mean 'saw'.*--plugin or ef.register", told)


def test_it_computes_what_it_says(mine: Path) -> None:
    for name in ("Saw", "Fading", "Turn"):
        family.register_spec(f"mine.py:{name}")
    model = ef.create_model("saw", width=4, layers=1, heads=2, vocabulary=9)
    expected = torch.tensor([[0, 0, 0, 0], [1 / 2, 1 / 3, 1 / 4, 1 / 5], [0, 2 / 3, 1 / 2, 2 / 5]])
    assert model.position is not None
    torch.testing.assert_close(model.position.embed(torch.arange(3)[None])[0], expected)
    x = torch.randn(1, 3, 4)
    for name, by in (("fading", lambda i, j: -torch.log(torch.tensor(1.0 + abs(i - j)))),
                     ("turn", None)):  # fmt: skip
        mixer = ef.create_mixer("attention", width=4, heads=2, causal=False, position=name).eval()
        q, k, v = mixer.project(x)
        if by is None:
            signs = torch.tensor([1.0, -1.0, 1.0])[:, None]
            q, k = q * signs, k * signs
        scores = q @ k.mT / 2**0.5
        if by is not None:
            scores = scores + torch.tensor([[by(i, j) for j in range(3)] for i in range(3)])
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(mixer(x).y, mixer.out(y))


@pytest.mark.parametrize(
    ("name", "hook", "old", "new", "said"),
    [
        ("saw", "embed", "% periods / periods", "% periods[:-1] / 2",
         r"y \(1, 3, 7\) of float32 on cpu, not \(1, 3, 8\)"),
        ("turn", "rotate", "x * (1", "x[..., :1] * (1",
         r"y \(2, 4, 3, 1\).*not \(2, 4, 3, 4\)"),
        ("turn", "rotate", "x * (1", "x.double() * (1", "y .* of float64 .* of float32 on cpu"),
        ("fading", "by_distance", '"h,...->h..."', '"h,...->...h"', r"y \(5, 2\).*not \(2, 5\)"),
        ("fading", "by_distance", "return -", "return 0  # -", "a int as y, not a tensor"),
    ],
)  # fmt: skip
def test_wrong_shapes_are_refused_with_file_and_line(
    name: str, hook: str, old: str, new: str, said: str, mine: Path
) -> None:
    text = mine.read_text(encoding="utf-8")
    assert text.count(old) == 1
    mine.write_text(text.replace(old, new), encoding="utf-8")
    family.register_spec(f"mine.py:{name.title()}")
    model = ef.create_model(name, width=8, layers=1, heads=2, vocabulary=9)
    where = rf"{re.escape(str(mine))}, line \d+, {name.title()}.{hook}"
    with pytest.raises(PluginError, match=rf"^the position '{name}' \({where}\) gave {said}"):
        model(torch.zeros(2, 3, dtype=torch.long))


WRONG = """
from everyformer.blocks.residual import Residual
from everyformer.core.config import NoOptions
from everyformer.core.position import Position
from everyformer.genes.positions.base import AdditivePosition

class Nowhere(Position):
    name = "nowhere"

class Empty(Position):
    name, acts_on = "empty", "queries-keys"

    def embed(self, positions):
        return positions[..., None]

class Scores(Position):
    name, acts_on = "scores", "scores"

class Adds(AdditivePosition):
    name = "adds"

class Fails(Position):
    name, acts_on = "fails", "embeddings"

    def embed(self, positions):
        return positions

    def build(self, sizes):
        1 / 0  # here

class Rope(Position):
    name, acts_on = "rope", "embeddings"

class Wired(Residual):
    name, Options = "wired", NoOptions
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Nowhere", 1, "'nowhere' .*must say which part of a model it acts on and have the hook"),
        ("Empty", 1, r"'empty' .*have the hook of it: embeddings \(embed\)"),
        ("Scores", 1, r"'scores' .*scores \(score\)"),
        ("Adds", 2, r"wrong.py, line \d+\) has no method 'by_distance': see docs"),
        ("Fails", 1, r"the position 'fails' \(.*wrong.py, line 22\) cannot be built, causal,"
         r".*wrong.py, line 29, in Fails.build: ZeroDivisionError"),
        ("Rope", 2, "'rope' is a member of this library: give your position another name"),
        ("Wired", 2, "is a residual, and known so are mixers, positions, tasks and kinds of data"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_position_is_refused_when_it_is_read(
    name: str, code: int, said: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine.parent / "wrong.py").write_text(WRONG, encoding="utf-8")
    assert main(["list", "--plugin", f"wrong.py:{name}"]) == code
    told = capsys.readouterr().err
    assert re.search(said, told), told
    assert "Traceback" not in told


def test_a_position_and_a_mixer_have_different_names(mine: Path) -> None:
    text = mine.read_text(encoding="utf-8")
    mine.with_name("second.py").write_text(text.replace('"turn"', '"saw"'), encoding="utf-8")
    family.register_spec("mine.py:Saw")
    with pytest.raises(ConfigError, match=r"two classes are called 'saw': Turn .* and Saw"):
        family.register_spec("second.py:Turn")


def test_a_class_is_registered_in_python(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(mine.parent))
    mine.rename(mine.with_name("own_places.py"))
    from own_places import Saw  # type: ignore[import-not-found]

    row = ef.register(Saw)
    assert (row.name, row.gene, row.genes["position"].name) == ("saw", "position", "saw")
    assert type(ef.create_model("saw", width=8, layers=1, heads=2).position) is Saw
