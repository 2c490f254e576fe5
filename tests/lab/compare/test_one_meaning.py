"""Python, flags and files describe a comparison by the same names, with the same meaning."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

import everyformer as ef
from everyformer.cli import main
from everyformer.cli.flags import FlagGroup
from everyformer.cli.names import spelled
from everyformer.cli.parsing import Line
from everyformer.cli.verbs.compare import CompareOptions
from everyformer.core.bounds import Bounds
from everyformer.core.config import Choice, to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.genes import GENES
from everyformer.lab.compare.plan import candidates
from everyformer.lab.report.compare import described

OF_THE_VERB = {"json": False, "only": None, "collect": False}
"""of the terminal alone"""
APART = {f"--{name}" for name in OF_THE_VERB}
WORDS: dict[str, Any] = {
    "task": "lm",
    "options": ["gmlp.gate=split"],
    "data.tokenizer": "chars",
    "training.device": "cpu",
}


def value_of(flag: str, hint: Any) -> Any:
    """A value that the flag takes and that is not its default, as files hold it."""
    name = flag[2:]
    if name in WORDS:
        return WORDS[name]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = next((mark for mark in arguments[1:] if isinstance(mark, Bounds)), None)
        value = value_of(flag, arguments[0])
        if bounds is None or not isinstance(value, int | float) or bounds.admit(value):
            return value
        return next(v for v in (1, 2, 0.25) if bounds.admit(v))
    if origin in (types.UnionType, typing.Union):
        return value_of(flag, next(kind for kind in arguments if kind is not types.NoneType))
    if origin is Literal:
        return arguments[-1]
    if origin is tuple and get_origin(arguments[0]) is tuple:
        return None
    if origin is tuple:
        several = 2 if arguments[-1] is Ellipsis else len(arguments)
        return [value_of(flag, arguments[0])] * several
    if dataclasses.is_dataclass(hint):
        return None
    return {bool: True, int: 3, float: 0.75, str: "x"}[hint]


def words_of(hint: Any, value: Any) -> list[str]:
    if isinstance(value, list):
        return [word for v in value for word in words_of(None, v)]
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    # what may be none takes a word, other switches take none
    return [] if value is True and hint is bool else [str(value)]


def cases() -> Iterator[tuple[str, Any, list[str]]]:
    """Every flag of a comparison, with a value for Python and files, and its words."""
    for flag, hint in FlagGroup(CompareOptions()).flags().items():
        if flag not in APART:
            value = value_of(flag, hint)
            yield flag, value, words_of(hint, value)


def cases_of_genes() -> Iterator[Any]:
    """Options that an alternative of a gene has, each with the alternative; drawn by the day."""
    for gene, record in GENES.items():
        for name in record.alternatives.names():
            options = record.typed(Choice(name)).options
            for flag, hint in FlagGroup(Choice(name, options), f"{gene}.").flags().items():
                # one has 'none' as a word of its own beside no value, which no flag can say
                usable = get_origin(hint) is not dict and flag != "--depth.order"
                if flag != f"--{gene}" and usable:
                    value = value_of(flag, hint)
                    words = words_of(hint, value)
                    yield pytest.param(gene, name, flag, value, words, id=f"{flag}-{name}")


def nested(flag: str, value: Any) -> dict[str, Any]:
    """``value`` in the tables that the flag names."""
    for part in reversed(flag[2:].split(".")):
        value = {part: value}
    table: dict[str, Any] = value
    return table


@pytest.mark.full("some 700 options, a second each")
@pytest.mark.parametrize(("gene", "name", "flag", "value", "words"), [*cases_of_genes()])
def test_an_option_of_a_gene_means_the_same_as_a_flag_and_in_python(
    gene: str,
    name: str,
    flag: str,
    value: Any,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(
        ["compare", "gmlp", f"--{gene}", name, flag.replace("_", "-"), *words, "--print-config"]
    )
    table = nested(flag, value)
    table[gene] = {"name": name, **table[gene]}
    try:
        config = to_dict(described(["gmlp"], **table))
    except ConfigError:
        assert code == 2
        return
    assert code == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(config | OF_THE_VERB))


@pytest.mark.full("many cases", parts=3)
@pytest.mark.parametrize(("flag", "value", "words"), [*cases()])
def test_an_option_means_the_same_as_a_flag_in_a_file_and_in_python(
    flag: str, value: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = spelled(flag)[2:].replace("-", "_")
    given = [nested(flag, value)]
    if "." not in short:
        given.append({short: value})

    def printed(*words: str) -> Any:
        capsys.readouterr()
        code = main(["compare", *words, "--print-config"])
        said = capsys.readouterr()
        return json.loads(said.out) if code == 0 else said.err.partition("\n")[0]

    by_flag = printed("gmlp", flag.replace("_", "-"), *words)
    for values in given:
        file = tmp_path / "run.json"
        file.write_text(json.dumps({"members": ["gmlp"], **values}), encoding="utf-8")
        by_file = printed("--config", str(file))
        try:
            config: Any = to_dict(described(["gmlp"], **values))
        except ConfigError:
            assert isinstance(by_flag, str)
            assert isinstance(by_file, str)
            continue
        assert isinstance(by_flag, dict), by_flag
        assert json.loads(json.dumps(config | OF_THE_VERB)) == by_flag == by_file


@pytest.mark.parametrize("way", ["flag", "python"])
def test_what_is_given_for_all_holds_over_rows_even_where_it_is_a_default(way: str) -> None:
    rows = described(["transformer"])
    if way == "flag":
        words = ["transformer", "--model.label-smoothing", "0", "--model.block.dropout", "0"]
        given = Line(CompareOptions, words, "compare").parse("", ())
    else:
        given = described(["transformer"], model={"label_smoothing": 0, "block": {"dropout": 0}})
    data = load_dataset(DataConfig(source="reverse", length=8))
    by_row, by_words = (candidates(config, data)[0].config for config in (rows, given))
    assert by_row is not None
    assert by_words is not None
    assert (by_row.label_smoothing, by_row.block.dropout) == (0.1, 0.1)
    block = dataclasses.replace(by_row.block, dropout=0.0)
    assert by_words == dataclasses.replace(by_row, label_smoothing=0.0, block=block)


def test_what_is_said_later_is_laid_over_what_was_said_before(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    before = {"members": ["transformer"], "width": 8, "model": {"block": {"dropout": 0.25}}}
    file.write_text(json.dumps(before), encoding="utf-8")
    words = ["--config", str(file), "--model.block.norm-eps", "0.5", "--layers", "3"]
    given = Line(CompareOptions, words, "compare").parse("", ())
    block = {"dropout": 0.25, "norm_eps": 0.5}
    assert given.model == {"width": 8, "layers": 3, "heads": 4, "block": block}
    data = load_dataset(DataConfig(source="reverse", length=8))
    own = dataclasses.replace(given, options=("transformer.dropout=0.125", "transformer.layers=2"))
    for config, layers, dropout in ((given, 3, 0.25), (own, 2, 0.125)):
        built = candidates(config, data)[0].config
        assert built is not None
        assert (built.width, built.layers, built.heads) == (8, layers, 4)
        assert (built.block.dropout, built.block.norm_eps) == (dropout, 0.5)
    # an option of another task is a member's error
    words = ["transformer", "--model.lookahead", "0.5"]
    [candidate] = candidates(Line(CompareOptions, words, "compare").parse("", ()), data)
    assert "read in the task lm alone, and this one is 'seq2seq'" in str(candidate.error)


def test_a_word_for_none_and_a_single_name_are_read_as_flags_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "gmlp", "--position", "none", "--print-config"]) == 0
    by_flag = json.loads(capsys.readouterr().out)
    for given in ("gmlp", ["gmlp"]):
        for word in (None, "none"):
            config = to_dict(described(given, position=word))
            assert json.loads(json.dumps(config | OF_THE_VERB)) == by_flag


def test_a_comparison_in_python_goes_on_without_repeating_anything(
    compare: Any, tree: Path, launched: list[str]
) -> None:
    done = compare("gmlp", "--steps", "2", "--seeds", "2")
    launched.clear()
    again = ef.compare(resume=True, out="made")
    assert launched == []
    assert [row["quality"] for row in again.rows] == [done.row("gmlp")["quality"]]
    with pytest.raises(CheckpointError, match="there is no comparison in elsewhere to resume"):
        ef.compare(resume=True, out="elsewhere")
    with pytest.raises(ConfigError, match=r"started with other options \(seeds: 2 -> 3\)"):
        ef.compare(resume=True, out="made", seeds=3)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 5, "budget_seconds": 3},
        {"steps": 5, "budget_seconds": 60},
        {"training": {"budget_tokens": 5, "budget_flops": 3}},
        {"training": {"steps": 5}, "steps": 5},
    ],
)
def test_two_budgets_are_refused(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        described(["gmlp"], **options)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"members": ["gmlp"], **options}), encoding="utf-8")
    assert main(["compare", "--config", str(file)]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_whoever_gives_a_budget_has_chosen_it(capsys: pytest.CaptureFixture[str]) -> None:
    """60 seconds are also what holds where nothing is said."""
    assert main(["compare", "gmlp", "--budget-seconds", "60", "--steps", "5"]) == 2
    assert "--steps and --budget-seconds are both given" in capsys.readouterr().err
    for options, budget in (
        ({}, ("seconds", 60)),
        ({"training": {"steps": 5}}, ("steps", 5)),
        ({"steps": 5}, ("steps", 5)),
        ({"budget_tokens": 7}, ("tokens", 7)),
    ):
        assert described(["gmlp"], **options).training.budget == budget
