"""Whatever stands in a config file where a table is expected has a plain meaning or is refused with
the names of the file and the key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Say

LINES = (("train", "rope"), ("compare", "attention", "gmlp"))
"""verbs with all the tables there are"""
VALUES = ("x.txt", [], [1], 3, True)
GENES = [
    ({"mixer": "performer"}, "--mixer performer"),
    ({"mixer": {"name": "performer", "features": 5}}, "--mixer performer --mixer.features 5"),
    ({"memory": "none"}, "--memory none"),
]
NONES = [
    # of an option that may be None, of one that lists the word, and of one of texts
    ("position = 'none'", "--position none"),
    ("[position]\nname = 'None'", "--position none"),
    ("[position]\nscaling = {kind = 'none'}", "--position.scaling.kind none"),
    ("[training]\nclip = 'none'", "--training.clip none"),
    ("memory = {name = 'compressive', gradient = 'none'}",
     "--memory compressive --memory.gradient none"),
]  # fmt: skip
"""a file's lines and flags that say the same"""
FIRST = [("train", "member", []), ("train", "task", 3), ("train", "from_run", {"a": 1}),
         ("train", "member", {"a": 1}), ("eval", "run", [])]  # fmt: skip


def tables(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every table in a table."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield (*path, key)
            yield from tables(value, (*path, key))


def nested(path: tuple[str, ...], value: Any) -> Any:
    return {path[0]: nested(path[1:], value)} if path else value


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_what_stands_in_place_of_a_table_is_refused_by_file_and_key(line, say, tree):
    _, out, _ = say(*line, "--print-config")
    found = list(tables(json.loads(out)))
    assert {("data",), ("mixer",), ("position",), ("training",)} <= set(found)
    for n, path in enumerate(found):
        # a word for the data has a meaning
        for value in VALUES[1:] if path == ("data",) else (VALUES[n % 5], VALUES[(n + 2) % 5]):
            (tree / "run.json").write_text(json.dumps(nested(path, value)))
            code, _, err = say(*line, "--config", "run.json", "--print-config")
            last = err.splitlines()[-1]
            assert code == 2, (path, value, last)
            assert last.startswith(f"everyformer: run.json: '{'.'.join(path)}'"), (value, last)
            assert repr(value).strip("'") in last, (path, last)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_word_for_the_data_means_what_the_flag_means(line, say, tree):
    (tree / "run.toml").write_text('data = "x.txt"')
    from_file = say(*line, "--config", "run.toml", "--print-config")
    assert from_file == say(*line, "--data", "x.txt", "--print-config")
    assert json.loads(from_file[1])["data"]["source"] == "x.txt"


@pytest.mark.parametrize(("values", "words"), GENES, ids=str)
def test_a_gene_in_a_file_means_what_its_flags_mean(values, words, say, tree):
    line = LINES["features" in words]
    (tree / "run.json").write_text(json.dumps(values))
    # rope is of mixers that compare queries with keys
    position = ("--position", "none")
    from_file = say(*line, *position, "--config", "run.json", "--print-config")
    assert from_file == say(*line, *position, *words.split(), "--print-config")
    assert from_file[0] == 0


@pytest.mark.parametrize(("verb", "key", "value"), FIRST, ids=str)
def test_what_decides_which_options_there_are_is_a_word(verb, key, value, say, tree):
    member = {"member": "gmlp"} if verb == "train" else {}
    (tree / "run.json").write_text(json.dumps(member | {key: value}))
    code, _, err = say(verb, "--config", "run.json")
    assert code == 2
    assert f"run.json: '{key}' must be str | None, not {value!r}" in err


@pytest.mark.parametrize(
    "words",
    ["compressive", "reformer", "calm", "attention --position none", "gmlp --budget-flops 9"],
)
def test_what_is_printed_is_read_again(words: str, say: Say, tree: Path) -> None:
    code, printed, _ = say("train", *words.split(), "--print-config")
    assert code == 0
    (tree / "run.json").write_text(printed)
    assert say("train", "--config", "run.json", "--print-config")[:2] == (0, printed)


@pytest.mark.parametrize(
    ("line", "own"),
    [
        (("index", "run", "--data", "text.txt", "--out", "store"), "context"),
        (("show", "run", "masks"), "length"),
        (("eval", "run"), "sequences"),
    ],
    ids=lambda value: value[0],
)
def test_an_option_of_a_verb_s_own_is_none_of_its_data(line, own, say, trained, tree):
    line = (line[0], str(trained("attention")), *line[2:])
    code, printed, _ = say(*line, f"--{own}", "7", "--print-config")
    assert code == 0
    (tree / "all.json").write_text(printed)
    (tree / "one.toml").write_text(f"{own} = 7")
    assert say(line[0], "--config", "all.json", "--print-config")[1] == printed
    assert say(*line, "--config", "one.toml", "--print-config")[1] == printed


@pytest.mark.parametrize(("lines", "words"), NONES, ids=str)
def test_none_is_the_word_for_nothing_where_it_is_no_name(lines, words, say, tree):
    (tree / "run.toml").write_text(lines)
    line = ("train", "rope") if "scaling" in lines else ("train", "attention")
    from_file = say(*line, "--config", "run.toml", "--print-config")
    assert from_file == say(*line, *words.split(), "--print-config")
    assert from_file[0] == 0
    # of a text it is a word
    (tree / "run.toml").write_text("prompt = ['none', 'None']")
    code, printed, _ = say("generate", "run", "--config", "run.toml", "--print-config")
    assert (code, json.loads(printed)["prompt"]) == (0, ["none", "None"])
