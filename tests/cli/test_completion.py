"""Tab completion: what a shell offers, and that its script needs no torch."""

import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from everyformer.cli import VERBS
from everyformer.family import names

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def offered(say: Callable) -> Callable[..., list[str]]:
    """What bash offers for the last word of a line."""
    code, text, err = say("--print-completion", "bash")
    assert (code, err) == (0, "")

    def run(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f"COMP_WORDS=(everyformer {line}); COMP_CWORD={len(words)}; _everyformer; "
        program = f'{text}\n{ask}printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        return done.stdout.split()

    return run


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "told"),
    [
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
    ],
    ids=lambda value: "-".join(value) if len(value) < 5 else "...",
)
def test_bash_offers_verbs_members_and_options(
    words: list[str], told: list[str], offered: Callable[..., list[str]]
) -> None:
    assert offered(*words) == told


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_is_told_every_verb_member_and_option(shell: str, say: Callable) -> None:
    text = say("--print-completion", shell)[1].replace("--", "").replace('"', " ")
    told = set(text.split())
    assert told >= {*VERBS, *names(), "steps", "data.validation", "exits.full", "plugin"}


@pytest.mark.parametrize("words", [("tcsh",), (), ("Bash",)])
def test_another_shell_is_refused_with_the_three(words: tuple[str, ...], refused: Callable) -> None:
    told = refused("--print-completion", *words)
    assert told == f"--print-completion takes bash, zsh or fish, not '{''.join(words)}'"


def test_scripts_need_no_torch() -> None:
    program = (
        "import sys; from everyformer.cli import main\n"
        f"for shell in {SHELLS}:\n    assert main(['--print-completion', shell]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
