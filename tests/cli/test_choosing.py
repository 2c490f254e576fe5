"""What helps to choose a member: `list` with filters, `info` of several."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from everyformer.cli.verbs.list import bytes_of
from everyformer.core.tasks import TASKS, Task
from everyformer.family import info, list_members
from everyformer.family.proposals import three

NAMES = [member.name for member in list_members()]


def listed(out: str) -> list[str]:
    """The names in the table of `list`."""
    return [line.split()[0] for line in out.splitlines()[2:]]


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        (["--state", "constant"], ["aft-conv", "linear", "gtrxl"], ["attention", "gmlp", "etc"]),
        (["--state", "grows"], ["attention", "gmlp", "routing"], ["linear", "etc", "reformer"]),
        # segments are read at the same cost each, so that a whole text takes time like L
        (["--growth", "L"], ["aft-conv", "linformer", "transformer-xl", "gtrxl", "compressive"],
         ["attention", "routing"]),
        (["--growth", "L^1.5"], ["aft-conv", "routing"], ["attention"]),
        (["--both-ways"], ["bert", "attention"], ["gpt", "linformer-chunked"]),
        (["--state", "constant", "--growth", "L", "--both-ways"], ["linear"],
         ["gtrxl", "sinkhorn"]),
    ],
)  # fmt: skip
def test_filters_leave_those_that_have_it(words, inside, outside, say):
    code, out, err = say("list", *words)
    assert (code, err) == (0, "")
    left = listed(out)
    assert left == [name for name in NAMES if name in left]
    assert set(inside) <= set(left)
    assert not set(outside) & set(left)


def test_growth_is_told_of_a_segment_where_there_are_segments(say: Callable) -> None:
    told = {m.name: m.cost.growth for m in list_members()}
    assert (told["gtrxl"], told["attention"], told["linear"]) == ("L^2 a segment", "L^2", "L")
    assert "L^2 a segment" in say("info", "gtrxl", "attention")[1]
    segments = {name for name, growth in told.items() if "segment" in growth}
    assert segments == {"transformer-xl", "compressive", "gtrxl", "memorizing", "spalm"}


def test_memory_is_what_the_formulas_of_the_rows_come_to(say: Callable) -> None:
    sizes = ["--length", "1000", "--width", "64", "--layers", "3", "--heads", "4"]
    told = {m["name"]: m["held_bytes"] for m in json.loads(say("list", *sizes, "--json")[1])}
    assert told["attention"] == 3 * 2 * 1000 * 64 * 4
    assert told["linear"] == 3 * 16 * (64 + 4) * 4
    assert told["gmlp"] == 3 * (1000 * 4 * 64 / 2 + 1000**2) * 4
    assert told["bert"] is None
    just, less = str(told["attention"] / 1000), str(told["attention"] / 1000 - 1)
    assert "attention" in listed(say("list", *sizes, "--memory", f"{just}KB")[1])
    assert "attention" not in listed(say("list", *sizes, "--memory", f"{less}KB")[1])
    _, out, err = say("list", *sizes, "--memory", "100 KiB")
    assert set(listed(out)) == {name for name, held in told.items() if held and held <= 100 * 1024}
    assert "1,000 tokens" in err
    assert "64 wide, 3 layers, 4 heads, float32" in err
    # layers are the member's own where none are said: one applied twelve times, beside four
    found = json.loads(say("list", "--length", "8", "--json")[1])
    told = {m["name"]: m["held_bytes"] for m in found}
    assert told["universal"] == 3 * told["attention"] == 12 * 2 * 8 * 128 * 4


def test_sizes_are_read_and_what_is_none_is_refused(refused: Callable) -> None:
    sizes = {"4GB": 4e9, "1.5 GiB": 1.5 * 2**30, "500mb": 5e8, "2T": 2e12, "12": 12, "7B": 7}
    assert {text: bytes_of(text) for text in sizes} == sizes
    for text in ("4XB", "much", "-1GB", "GB"):
        told = f"--memory takes a size such as 4GB or 500MB, not '{text}'"
        assert told in refused("list", f"--memory={text}")


@pytest.mark.parametrize("sort", ["name", "time", "state"])
def test_members_are_sorted_the_least_first_and_in_order_where_equal(sort, say):
    found = json.loads(say("list", "--sort", sort, "--length", "4096", "--json")[1])
    keys = {
        "name": lambda m: m["name"],
        "time": lambda m: m["cost"]["time"],
        "state": lambda m: float("inf") if m["held_bytes"] is None else m["held_bytes"],
    }
    family = sorted(found, key=lambda m: NAMES.index(m["name"]))
    assert found == sorted(family, key=keys[sort])
    assert len(found) == len(NAMES)


def test_the_filter_that_leaves_nothing_is_named(say: Callable) -> None:
    code, out, err = say("list", "--task", "seq2seq", "--state", "constant", "--memory", "1KB")
    assert (code, out) == (0, "")
    assert "--memory 1KB leaves no member of those that --task seq2seq" in err
    assert "--state constant" in err
    assert say("list", "--json", "--memory", "1B")[1].strip() == "[]"


def test_several_members_stand_side_by_side(say: Callable) -> None:
    code, out, _ = say("info", "attention", "linear", "gtrxl")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    first = out.splitlines()[0]
    assert first.split() == ["attention", "linear", "gtrxl"]
    at = [first.index(name) for name in first.split()]
    # a column each: what stands under a name is that member's
    columns = [" ".join(line[a:b].strip() for line in out.splitlines()) for a, b in
               zip(at, [*at[1:], None], strict=True)]  # fmt: skip
    for name, column in zip(first.split(), columns, strict=True):
        row, flat = info(name), " ".join(column.split())
        for text in (row.title, row.claim, row.cost.formula, ", ".join(row.tasks), row.cost.state):
            assert text in flat
    assert "gated" in columns[2]
    assert "pre" in columns[0]
    both = json.loads(say("info", "gmlp", "linear", "--json")[1])
    assert [one["name"] for one in both] == ["gmlp", "linear"]
    assert json.loads(say("info", "gmlp", "--json")[1]) == both[0]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_three_members_are_proposed_for_every_task(task: Task) -> None:
    proposed = three(task)
    assert len({member.name for member in proposed}) == 3
    assert all(task.name in member.tasks for member in proposed)
    assert proposed[2].name == ("rope" if task.forward_only else "gmlp")
    # one of them is for long rows
    assert min(member.cost.time for member in proposed) == 1


@pytest.mark.parametrize(
    ("words", "task", "made"),
    [
        ([], "lm", "gpt"),
        (["--data", "text.txt", "--length", "32"], "lm", "gpt"),
        (["--data", "text.txt", "--task", "mlm"], "mlm", "bert"),
        (["--data", "rated.csv"], "classify-text", "bert"),
        (["--data", "rated.csv", "--task", "regress"], "regress-text", "bert"),
        (["--data", "pairs.tsv", "--data.languages", "en-de"], "seq2seq", "transformer"),
        (["--data", "digits"], "classify-image", "vit"),
        (["--data", "waves"], "classify-series", "attention"),
    ],
)
def test_training_no_member_proposes_three_by_the_data(words, task, made, say, tree):
    (tree / "rated.csv").write_text("text,label\nfine,1\nbad,0\nso so,1\nawful,0\n")
    (tree / "pairs.tsv").write_text("en\tde\none\teins\ntwo\tzwei\n")
    before = sorted(tree.iterdir())
    code, out, err = say("train", *words)
    assert (code, out) == (2, "")
    assert f"for the task {task}; try one of these" in err
    assert f"`everyformer list --task {task}` has all that can" in err
    commands = re.findall(r"^  everyformer (train .*)$", err, re.MULTILINE)
    assert [shlex.split(command)[1] for command in commands] == [
        member.name for member in three(TASKS[task])
    ]
    assert commands[0].startswith(f"train {made}")
    assert sorted(tree.iterdir()) == before
    for command in commands:
        code, out, err = say(*shlex.split(command), "--print-config")
        assert code == 0, err


def test_reasons_are_what_the_rows_say(say: Callable, refused: Callable, tree: Path) -> None:
    assert "there is no file or folder 'none.txt'" in refused("train", "--data", "none.txt")
    err = say("train", "--data", "text.txt")[2]
    assert "Linear attention; time grows like L, its state stays as large" in err
    assert "decoder-only language model; time grows like L^2, its state grows" in err
    err = say("train", "--data", "digits")[2]
    assert "Vision Transformer; time grows like L^2, reads both ways" in err
