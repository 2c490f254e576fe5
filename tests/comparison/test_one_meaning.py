"""Python, flags and files describe a comparison by the same names, with the same meaning."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from everyformer.cli import main
from everyformer.cli.flags import FlagGroup
from everyformer.cli.names import spelled
from everyformer.cli.parsing import Line
from everyformer.cli.verbs.compare import CompareOptions
from everyformer.comparison.plan import entrants
from everyformer.core.bounds import Bounds
from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.report.compare import described

APART = {"--json"}
"""of the terminal alone"""
THREE_WAYS = {"--model.causal", "--model.scale_embedding"}
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
    if origin is tuple:
        several = 2 if arguments[-1] is Ellipsis else len(arguments)
        return [value_of(flag, arguments[0])] * several
    return {bool: True, int: 3, float: 0.75, str: "x"}[hint]


def cases() -> Iterator[tuple[str, Any]]:
    for flag, option in FlagGroup(CompareOptions()).flags().items():
        if flag not in APART and "." not in flag[2:].partition(".")[2]:
            yield flag, value_of(flag, option.hint)


def words_of(flag: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(v) for v in value]
    # what may be none takes a word, other switches take none
    return [] if value is True and flag not in THREE_WAYS else [str(value)]


@pytest.mark.parametrize(("flag", "value"), [*cases()])
def test_an_option_means_the_same_as_a_flag_in_a_file_and_in_python(
    flag: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = spelled(flag)[2:].replace("-", "_")
    table, _, inner = flag[2:].rpartition(".")
    nested = {table: {inner: value}} if table else {inner: value}
    given: list[dict[str, Any]] = [nested]
    if "." not in short:
        given.append({short: value})

    def printed(*words: str) -> Any:
        capsys.readouterr()
        code = main(["compare", *words, "--print-config"])
        said = capsys.readouterr()
        return json.loads(said.out) if code == 0 else said.err.partition("\n")[0]

    by_flag = printed("gmlp", flag.replace("_", "-"), *words_of(flag, value))
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
        assert json.loads(json.dumps(config | {"json": False})) == by_flag == by_file


@pytest.mark.parametrize("way", ["flag", "python"])
def test_what_is_given_for_all_holds_over_rows_even_where_it_is_a_default(way: str) -> None:
    rows = described(["transformer"])
    if way == "flag":
        words = ["transformer", "--model.label-smoothing", "0", "--model.block.dropout", "0"]
        given = Line(CompareOptions, words, "compare").parse("", ())
    else:
        given = described(["transformer"], model={"label_smoothing": 0, "block": {"dropout": 0}})
    data = load_dataset(DataConfig(source="reverse", length=8))
    by_row, by_words = (entrants(config, data)[0].config for config in (rows, given))
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
        built = entrants(config, data)[0].config
        assert built is not None
        assert (built.width, built.layers, built.heads) == (8, layers, 4)
        assert (built.block.dropout, built.block.norm_eps) == (dropout, 0.5)


def test_whoever_gives_a_budget_has_chosen_it() -> None:
    assert described(["gmlp"]).training.budget == ("seconds", 60)
    for options in ({"training": {"steps": 5}}, {"steps": 5}):
        assert described(["gmlp"], **options).training.budget == ("steps", 5)
    assert described(["gmlp"], budget_tokens=7).training.budget == ("tokens", 7)
    assert described(["gtrxl"], data={"env": "CartPole-v1"}).training.budget == ("tokens", 100_000)


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


def test_two_budgets_among_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # 60 seconds are also what holds where nothing is said
    assert main(["compare", "gmlp", "--budget-seconds", "60", "--steps", "5"]) == 2
    assert "--steps and --budget-seconds are both given" in capsys.readouterr().err
