"""What a newcomer reads first: help, lists, machine output, and how fast it comes."""

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import everyformer
from everyformer.cli import VERBS
from everyformer.cli.names import MATTER
from everyformer.core.tasks import TASKS
from everyformer.data.builtins import BUILTINS
from everyformer.family import list_members
from everyformer.genes import GENES


def flags_in(text: str) -> set[str]:
    """The flags that help has rows for, as they are first spelled."""
    boxes = text.partition("everywhere:")[0]
    return set(re.findall(r"^.{0,2}(--[a-z][\w.-]*)", boxes, re.MULTILINE))


def test_every_built_in_is_named_where_data_is_asked_for(say: Callable) -> None:
    named = say("train", "--help")[1].partition("built-in:")[2].partition("Episodes")[0]
    assert set(BUILTINS) <= set(re.findall(r"\w+", named))


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_options_counts_the_others_and_ends_in_two_examples(verb, say, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    pages = []
    for words in (("--help",), ("--help", "all")):
        code, out, err = say(verb, *words)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: everyformer {verb}")
        examples = out.rstrip().rpartition("examples:\n")[2].splitlines()
        assert len(examples) == 2
        assert all(line.startswith(f"  everyformer {verb}") for line in examples)
        lines = [line for line in out.partition("everywhere:")[0].splitlines() if line.strip("│ ")]
        rows = [row for line in lines if (row := line.strip("│─- \n"))]
        for row, below in zip(rows, [*rows[1:], ""], strict=True):
            alone = row.startswith("--") and "  " not in row
            assert not alone or (below and not below.startswith("--")), f"{row} is not explained"
        assert max(map(len, out.splitlines())) <= 100
        pages.append(out)
    short, whole = pages
    matter = {f"--{name}" for name in MATTER.get(verb, "").split()}
    assert flags_in(short) == (matter or flags_in(whole))
    assert flags_in(short) <= flags_in(whole)
    told = re.search(rf"`everyformer {verb} --help all` shows the other (\d+)", short)
    hidden = len(flags_in(whole) - flags_in(short))
    assert hidden == (int(told[1]) if told else 0)
    assert "shows the other" not in whole
    assert len(flags_in(short)) <= (12 if matter else 20)
    if verb == "list":
        assert say(verb, "all", "-h")[1] == whole


def test_help_ends_in_the_narrowest_of_places_and_what_it_leaves_out_is_still_taken(
    say, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "5")
    code, out, _ = say("calibrate", "--help")
    assert code == 0
    assert out.rstrip().splitlines()[-1].startswith("  everyformer calibrate")
    assert "clip" not in say("train", "--help")[1]
    code, out, _ = say("train", "gmlp", "--training.clip", "0.5", "--print-config")
    assert (code, json.loads(out)["training"]["clip"]) == (0, 0.5)


def test_examples_in_help_are_understood(say: Callable, tree, trained: Callable) -> None:
    trained("aft-local")
    trained("gmlp")
    trained("transformer-xl")
    _, out, _ = say("--help")
    lines = re.findall(r"^  everyformer (\w+ .*)$", out, re.MULTILINE)
    for verb in VERBS:
        lines += re.findall(r"^  everyformer (\w+.*)$", say(verb, "--help")[1], re.MULTILINE)
    assert len(lines) >= 2 * len(VERBS)
    for line in lines:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
        code, out, err = say(*words, "--print-config")
        assert code == 0, f"{line}: {err}"
        json.loads(out)


def test_a_members_own_options_stand_in_its_help(say: Callable) -> None:
    assert "--mixer.window" in say("train", "aft-local", "--help", "all")[1]
    assert "--mixer.window" not in say("train", "gmlp", "--help", "all")[1]
    assert "--mixer." not in say("train", "--help", "all")[1]
    rope = say("train", "--help", "all", "attention", "--position", "rope")[1]
    assert "--position.base" in rope


def test_help_and_import_do_not_wait_for_torch() -> None:
    program = (
        "import sys; from everyformer.cli import main; import everyformer\n"
        f"for verb in {[*VERBS]}:\n    main([verb, '--help'])\n"
        "main(['--help']); main(['list']); main(['list', '--json'])\n"
        "for shell in ('bash', 'zsh', 'fish'): assert main(['--print-completion', shell]) == 0\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves() -> None:
    for name in everyformer.__all__:
        assert getattr(everyformer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'transform'"):
        _ = everyformer.transform


def test_help_of_the_library_begins_with_calls_and_its_examples_run() -> None:
    told = everyformer.__doc__
    first = told.split("\n\n")[1]
    called = re.findall(r"ef\.(\w+)\(", first)
    assert len(called) == len(set(called)) > 12
    assert set(called) <= set(everyformer.__all__)
    assert called[:3] == ["compare", "create_model", "create_mixer"]
    # one line each, which says what it is
    assert all(re.search(r"\)  +\w", line) for line in first.splitlines())
    result = doctest.testmod(everyformer)
    assert result.attempted > 5
    assert result.failed == 0


def test_members_are_listed_by_what_they_can_do(say: Callable) -> None:
    _, out, _ = say("list")
    assert [line.split()[0] for line in out.splitlines()[2:]] == [m.name for m in list_members()]
    _, out, err = say("list", "--json", "--streaming", "--task", "lm")
    expected = list_members(task="lm", abilities=("streaming",))
    assert (err, [m["name"] for m in json.loads(out)]) == ("", [m.name for m in expected])


@pytest.mark.dear("rows and options of all members are told alike")
@pytest.mark.parametrize("member", [m.name for m in list_members()])
def test_info_tells_what_the_row_and_the_options_say(member: str, say: Callable) -> None:
    code, out, _ = say("info", member)
    assert code == 0
    row = everyformer.info(member)
    assert row.title in out
    assert row.claim in out
    assert f"everyformer train {member} {TASKS[row.tasks[0]].train}" in out
    described = json.loads(say("info", member, "--json")[1])
    assert described["name"] == member
    assert described["strictly_causal"] == row.strictly_causal
    assert described["options"].keys() == GENES.keys()
    assert all(option["meaning"] for own in described["options"].values() for option in own)


def test_a_closed_pipe_is_the_readers_choice() -> None:
    words = [sys.executable, "-m", "everyformer", "list", "--json"]
    writer: Any = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    writer.stdout.close()
    assert writer.wait(30) == 0
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_no_verb_is_wrong_usage_and_version_is_told(say: Callable) -> None:
    assert say()[0] == 2
    code, out, _ = say("--version")
    assert (code, out) == (0, f"everyformer {everyformer.__version__}\n")
