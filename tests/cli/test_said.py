"""The line is parsed once into what was said, which is laid over what holds where nothing is."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from everyformer.cli import VERBS
from everyformer.cli.flags import FlagGroup, named_flag, unset
from everyformer.cli.names import spelled
from everyformer.cli.verbs.train import read_run
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.data import load_dataset
from everyformer.training.spec import RunSpec, described, model_config, resolve


@pytest.mark.parametrize("words", ["", "--model.label-smoothing 0"])
def test_a_flag_with_its_default_stays_in_a_task_with_another(words, tmp_path) -> None:
    said, _, known = read_run(["universal", *words.split()])
    assert known.model.label_smoothing == 0.0
    smoothing = resolve(said, "seq2seq").model.label_smoothing
    assert smoothing == (0.0 if "smoothing" in words else 0.1)
    # so does a value of a file and one in Python
    values: dict[str, Any] = {"member": "universal", "model": {"label_smoothing": 0.0}}
    (tmp_path / "run.json").write_text(json.dumps(values), encoding="utf-8")
    from_file = resolve(read_run(["--config", str(tmp_path / "run.json")])[0], "seq2seq")
    assert from_file == resolve([(values, "")], "seq2seq")
    assert from_file.model.label_smoothing == 0.0


def test_what_is_said_is_no_more_than_the_words(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"steps": 5, "memory": "segment"}', encoding="utf-8")
    words = ["attention", "--lr=0.001", "--position", "rope", "--position.base", "9", "--json",
             "--config", str(file), "--model.block.dropout", "0.1", "--batch", "16"]  # fmt: skip
    (below, _), (names, _), (above, where) = read_run(words)[0]
    assert where == "--"
    assert below == {"training": {"steps": 5}, "memory": "segment"}
    assert names == {"position": {"name": "rope"}}
    assert above == {
        "member": "attention",
        "position": {"name": "rope", "base": 9.0},
        "model": {"block": {"dropout": 0.1}},
        "training": {"lr": 0.001, "batch": 16},
        "json": True,
    }


@pytest.mark.parametrize(
    ("words", "position"),
    [
        ("", {"name": "rope", "base": 500.0}),
        ("--position.base 7", {"name": "rope", "base": 7.0}),
        ("--position xl-relative", {"name": "xl-relative"}),
        ("--position none", {"name": None}),
        ("--position t5-relative --position.buckets 8", {"name": "t5-relative", "buckets": 8}),
    ],
)
def test_an_alternative_of_the_line_takes_the_place_of_that_of_the_file(words, position, tmp_path):
    file = tmp_path / "run.json"
    file.write_text('{"position": {"name": "rope", "base": 500.0}}', encoding="utf-8")
    options = read_run(["attention", "--config", str(file), *words.split()])[2]
    plain = {"name": options.genes["position"].name, **options.genes["position"].plain()}
    assert plain | position == plain


def kinds() -> list[Any]:
    homes = [importlib.import_module(f"everyformer.cli.verbs.{verb}") for verb in VERBS]
    values = [value for home in homes for value in vars(home).values() if isinstance(value, type)]
    return [kind for kind in values if issubclass(kind, Options)]


def test_every_flag_of_every_verb_is_known_by_all_its_names() -> None:
    """One that was not would be read, and then left out of what was said."""
    assert len(kinds()) > 10
    for kind in kinds():
        flags = FlagGroup(unset(kind)).flags()
        for flag in flags:
            assert named_flag(flag.replace("_", "-"), flags) == flag
            assert named_flag(f"{flag}=3", flags) == flag
            home, _, name = flag.rpartition(".")
            off = f"{home}.no-{name}" if home else f"--no-{name[2:]}"
            assert named_flag(off, flags) == flag
            short = spelled(flag)
            assert named_flag(short, flags) in (flag, "--" + short[2:].replace("-", "_"))


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox " * 100, encoding="utf-8")
    return str(path)


def run_of(text: str, **more: Any) -> RunSpec:
    values = {"member": "attention", "data": {"source": text, "length": 8}, **more}
    return resolve([(values, "")])


def test_the_mixer_that_is_split_by_heads_keeps_its_options(text: str) -> None:
    run = run_of(text, mixer={"window": 3}, by_head="attention,aft-local", model={"heads": 2})
    made = model_config(run, load_dataset(run.data, "lm"))
    assert made.genes["mixer"].options["own"]["attention"]["window"] == 3
    assert described(made).genes["mixer"].options.window == 3
    assert described(made).by_head == run.by_head


def test_a_feedforward_that_no_layer_reads_is_refused(text: str) -> None:
    data = load_dataset(run_of(text).data, "lm")
    model_config(run_of(text, member="gmlp"), data)
    for feedforward in ("relu", {"expansion": 2.0}):
        with pytest.raises(GeneError, match="`feedforward` has no meaning"):
            model_config(run_of(text, member="gmlp", feedforward=feedforward), data)


def test_causality_is_taken_over_by_what_answers_alone(text: str) -> None:
    run = run_of(text)
    origin = model_config(run, load_dataset(run.data, "lm"))
    assert model_config(run, load_dataset(run.data, "mlm"), origin).causal is False
