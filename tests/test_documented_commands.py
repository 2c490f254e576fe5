"""Every command that README and docs show: its words are options that there are, and it runs."""

import importlib.util
import io
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef
from documented import (
    PAGES,
    Command,
    mentioned,
    other_blocks,
    shown,
    smaller,
    write_mixer,
    write_stand_ins,
)
from everyformer.checks.verify import FULL, LAWS
from everyformer.cli import main
from everyformer.core.errors import UnknownNameError
from everyformer.family import info
from everyformer.lab.experiments.base import find
from everyformer.lab.suites.config import SuiteConfig
from everyformer.lab.suites.run import complete
from sequence_laws.judging import LAWS as OF_OTHERS
from sequence_laws.names import is_target

COMMANDS = {page: [*shown(page)] for page in PAGES}
MENTIONED = [
    command for page in PAGES if page != "docs/adding-a-member.md" for command in mentioned(page)
]
"""but for the member that a reader makes, which is not there"""
ELSEWHERE = {"docs/hugging-face.md": "tests/test_hugging_face_page.py runs it whole"}
"""page -> who runs its commands"""
NETWORK = "reads a checkpoint of the hub, or what was made of it"
EXEMPT = {
    "convert openai-community/gpt2": NETWORK,
    "generate models/gpt2": NETWORK,
    "convert Helsinki-NLP/opus-mt-en-de": NETWORK,
    "generate models/en-de": NETWORK,
    "convert google-bert/bert-base-uncased": NETWORK,
    "convert models/gpt2": NETWORK,
    "compare attention gmlp --data mytext.txt --steps 2000": "jobs of a comparison: test_scheduled",
    "suite": "trains for minutes, or for a night: tests/lab/suites/test_suite.py",
    "verify hf:all": "builds 241 models, for half an hour",
}
if importlib.util.find_spec("llama_cpp") is None:
    EXEMPT["bench gpt --lengths --write"] = "writes beside llama.cpp, which is not installed"
"""how a command begins -> why it is parsed, but not run"""
BROKEN = {"verify mymodel.py:Net hf:gpt2"}
"""commands that end with 1: a law is broken, GPT-2 of transformers names no limit of lengths"""
BEFORE = {"docs/datastores.md": ["train transformer-xl --data mytext.txt"]}
"""page -> commands whose results its own take for granted"""
COPIES = dict.fromkeys(("runs/gtrxl-1", "runs/gtrxl-2", "runs/without-memory"), "runs/gtrxl")
"""a run of the reader's own -> the run of the page that stands for it"""
STARTS = {
    "runs/early": {"member": "rope", "depth": "calm"},
    "runs/transformer-xl": {"member": "transformer-xl"},
    "runs/bert": {"member": "bert", "task": "mlm"},
}
"""runs that others start from, where they are not of rope"""

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a saved model for every run that a command names, and the page's mixer."""
    place = tmp_path_factory.mktemp("documented")
    write_mixer(place)
    sizes = {"width": 8, "heads": 2, "layers": 2, "vocabulary": 256, "max_length": 64}
    every = [*itertools.chain(*COMMANDS.values()), *MENTIONED]
    folders = {
        word
        for one in every
        for word in one.words
        # what a command continues, it has begun itself
        if re.match("(runs|models)/|mixed$", word) and "--resume" not in one.words
    }
    for folder in sorted(folders):
        chosen: dict[str, Any] = {"member": "rope", "task": "lm", **STARTS.get(folder, {})}
        ef.save(
            ef.create_model(chosen.pop("member"), chosen.pop("task"), **sizes, **chosen),
            str(place / folder),
        )
    return place


@pytest.fixture
def read(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[str]], str]:
    """Reads words as their verb does, without doing anything; gives what is wrong, or nothing."""
    monkeypatch.chdir(saved)

    def read(words: Sequence[str]) -> str:
        capsys.readouterr()
        whole = words[0].startswith("-")
        code = main([*words] if whole else [*words, "--print-config"])
        out, err = capsys.readouterr()
        if code or whole:
            return err
        options = json.loads(out)
        named = [*options.get("members", ()), options.get("member")]
        try:
            for name in filter(None, named):
                if words[0] == "suite":
                    complete(SuiteConfig(members=(name,)))
                elif words[0] != "verify" or not is_target(name):
                    info(name)
            if words[0] == "reproduce":
                find(options["name"])
        except UnknownNameError as error:
            return str(error)
        known = {*LAWS, *FULL, *OF_OTHERS}
        return "".join(law for law in options.get("laws", ()) if law not in known)

    return read


def test_commands_are_found() -> None:
    assert sum(map(len, COMMANDS.values())) > 70
    assert len(MENTIONED) > 40
    assert not [page for page in PAGES if "\neveryformer " in other_blocks(page)]


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS[page]])
def test_options_that_a_page_shows_are_there(
    page: str, read: Callable[[Sequence[str]], str]
) -> None:
    wrong = {str(command): read(command.words) for command in COMMANDS[page]}
    assert not {command: why for command, why in wrong.items() if why}


@pytest.mark.parametrize("command", MENTIONED, ids=str)
def test_options_in_a_sentence_are_there(
    command: Command, read: Callable[[Sequence[str]], str]
) -> None:
    assert not read(command.words)


@pytest.mark.parametrize(
    "words",
    [
        "trian attention --data mytext.txt",
        "train atention --data mytext.txt",
        "train attention --data mytext.txt --position.bas 1e6",
        "train rope --depth clam --data mytext.txt",
        "compare attention atf-conv --data mytext.txt",
        "compare attention --data mytext.txt --budget-second 60",
        "eval runs/mine --data.part",
        "eval runs/nowhere",
        "generate runs/mine --promt x",
        "convert runs/mine --to tflite --out x",
        "verify attention --laws chunk",
        "reproduce near-identities",
        "info attentoin",
        "calibrate runs/mine --delta 2",
        "collect CartPole-v1 --out x",
        "train gtrxl --env CartPole-v1",
    ],
)
def test_a_wrong_command_is_noticed(words: str, read: Callable[[Sequence[str]], str]) -> None:
    assert read(words.split())


@pytest.mark.full("runs every documented command")
@pytest.mark.parametrize("page", [p for p in PAGES if COMMANDS[p] and p not in ELSEWHERE])
def test_commands_of_a_page_run_one_after_the_other(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stand_ins(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    before = [Command(page, tuple(line.split())) for line in BEFORE.get(page, [])]
    for command in [*before, *COMMANDS[page]]:
        if any(" ".join(command.words).startswith(begin) for begin in EXEMPT):
            continue
        for folder, origin in COPIES.items():
            if folder in command.words:
                shutil.copytree(origin, folder)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(command.stdin.encode())))
        words = smaller(command.words)
        code = main(words)
        out, err = capsys.readouterr()
        assert code == (" ".join(command.words) in BROKEN), (
            f"{command}\n{words}\n{out[-1500:]}\n{err[-1500:]}"
        )
