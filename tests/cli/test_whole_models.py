"""Runs of whole models of someone else: their code is named again, moves, is edited and fails."""

import re
from pathlib import Path

import pytest
from commands import Refused, Say

from everyformer.core.plugins import MODELS

# the command line says them
pytestmark = pytest.mark.filterwarnings("default:the model of")
FILE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, x):
        return self.head(self.embed(x).cumsum(1))


class Boom(Net):
    def forward(self, x):
        return {}["logits"]  # here


class Shape(Net):
    def forward(self, x):  # here
        return super().forward(x).mean(1)


class Bare(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocab_size, vocab_size))

    def forward(self, x):
        return self.table[x]
"""


@pytest.fixture(autouse=True)
def theirs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MODELS, "")
    (tree / "theirs.py").write_text(FILE)
    return tree / "theirs.py"


@pytest.fixture
def run(say: Say, tree: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of Net, whose code must be named again."""
    sizes = ("--width", "8", "--length", "9", "--batch", "2", "--training.threads", "1")
    words = ("train", "theirs.py:Net", "--data", "text.txt", "--steps", "1", "--out", "run", *sizes)
    code, _, err = say(*words)
    assert code == 0, err
    monkeypatch.setenv(MODELS, "")
    return "run"


def test_a_file_that_moved_is_named_where_it_is(run, theirs, say, refused):
    theirs.with_name("deep").mkdir()
    theirs.rename(theirs.with_name("deep") / "ours.py")
    said = refused("eval", run)
    assert said.endswith("that file is not there any more: give the PATH where it is now")
    assert "--plugin PATH/theirs.py:Net" in said
    told = f"the model of '{theirs}:Net' is made by {theirs.parent}/deep/ours.py:Net"
    code, out, err = say("eval", run, "--plugin", "deep/ours.py:Net")
    assert code == 0, err
    assert told in err
    assert "loss" in out
    assert "was edited since" not in err


def test_a_file_of_another_name_s_model_is_not_taken(run: str, refused: Refused) -> None:
    assert "--plugin" in refused("eval", run, "--plugin", "theirs.py:Shape")


@pytest.mark.parametrize("name", ["theirs.py", "ours.py"])
def test_a_file_that_was_edited_is_told(name: str, run: str, theirs: Path, say: Say) -> None:
    theirs.rename(theirs.with_name(name))
    words = ("eval", run, "--plugin", f"{name}:Net")
    assert "was edited since" not in say(*words)[2]
    theirs.with_name(name).write_text(FILE.replace("cumsum(1)", "cumsum(1) / 2"))
    code, _, err = say(*words)
    assert code == 0
    assert f"{theirs.with_name(name)}:Net was edited since this run was started" in err


def test_it_is_no_model_of_transformers(run: str, refused: Refused) -> None:
    words = ("convert", run, "--plugin", "theirs.py:Net", "--to", "hf-model", "--out", "out")
    said = refused(*words)
    assert said.startswith("'theirs.py:Net' is a whole model of your own, which is read ")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Boom", 1, "the model 'PATH:Boom' fails as it reads: PATH, line HERE, in .*: KeyError: "),
        ("Shape", 2, r"Shape \(PATH, line HERE\) gives one output a row, .* at each position$"),
        ("Bare", 2, "what 'PATH:Bare' reads is not known: it has neither an nn.Embedding of "),
    ],
)
def test_one_that_cannot_be_trained_fails_in_its_own_name(name, code, said, theirs, refused):
    words = ("train", f"theirs.py:{name}", "--data", "text.txt", "--steps", "1", "--out", "run")
    given = refused(*words, "--width", "8", "--length", "9", code=code)
    lines = FILE[FILE.index(f"class {name}") :].splitlines()
    first = FILE[: FILE.index(f"class {name}")].count("\n") + 1
    here = next((first + n for n, line in enumerate(lines) if "# here" in line), 0)
    said = said.replace("PATH", re.escape(str(theirs))).replace("HERE", str(here))
    assert re.match(said, given), given
