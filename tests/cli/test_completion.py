"""Tab completion: what a shell offers, and that its script needs no torch."""

import shutil
import subprocess
from collections.abc import Callable

import pytest

from everyformer.cli import VERBS
from everyformer.family import names

SHELLS = ("bash", "zsh", "fish")


OFFERED = [
    ([""], [*VERBS]),
    (["tr"], ["train"]),
    (["train", ""], names()),
    (["train", "aft-"], ["aft-full", "aft-local", "aft-simple", "aft-conv"]),
    (["compare", "gmlp", "aft-c"], ["aft-conv"]),
    (["train", "gpt", "--budget-s"], ["--budget-seconds"]),
    (["train", "gpt", "--training.decay"], []),
    (["info", "li"], ["linear", "linformer", "linformer-chunked"]),
    # a file is meant, which the shell completes where nothing is offered
    (["eval", ""], []),
    (["train", "gpt", "--data", ""], []),
    # a switch takes no value
    (["compare", "--resume", "gml"], ["gmlp"]),
    (["compare", "--data", "gml"], []),
    (["eval", "runs/x", "--ble"], ["--bleu"]),
    (["train", "--help", "a"], ["all"]),
    (["list", "--both"], ["--both-ways"]),
    (["list", "--print-c"], ["--print-config"]),
]
"""words of a line, and what bash offers for the last"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_offers_verbs_members_and_options(say: Callable) -> None:
    code, text, err = say("--print-completion", "bash")
    assert (code, err) == (0, "")
    for words, _ in OFFERED:
        line = " ".join(f"'{word}'" for word in words)
        text += f"\nCOMP_WORDS=(everyformer {line}); COMP_CWORD={len(words)}; COMPREPLY=(); "
        text += '_everyformer; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert [line.split() for line in done.stdout.splitlines()] == [told for _, told in OFFERED]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_told_every_verb_member_and_option(shell: str, say: Callable) -> None:
    text = say("--print-completion", shell)[1].replace("--", "").replace('"', " ")
    told = set(text.split())
    assert told >= {*VERBS, *names(), "steps", "data.validation", "exits.full", "plugin"}


@pytest.mark.parametrize("words", [("tcsh",), (), ("Bash",)])
def test_another_shell_is_refused_with_the_three(words: tuple[str, ...], refused: Callable) -> None:
    told = refused("--print-completion", *words)
    assert told == f"--print-completion takes bash, zsh or fish, not '{''.join(words)}'"
