"""Whole models write beside others' programs: the same weights, the same tokens, in turn."""

import dataclasses
import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.core.errors import ConfigError
from everyformer.generation import programs
from everyformer.lab.bench import writing
from everyformer.lab.bench.limits import least_seconds
from everyformer.lab.bench.points import Point, Setting
from sequence_laws.operations import Counter

SMALL = Setting(width=16, heads=2, batch=1, seconds=0.001, threads=1)
SOURCES = ("everyformer", *writing.WRITTEN["gpt"])
HF = SOURCES[:3]


def asked(*sources: str, member: str = "gpt", length: int = 12) -> list[Point]:
    return [Point(member, length, source, "write") for source in sources]


def texts(*sources: str, batch: int, folder: Path) -> list[torch.Tensor]:
    model, first = writing.model_of(
        asked("everyformer")[0], dataclasses.replace(SMALL, batch=batch)
    )
    return [writing.WRITERS[source](model, first, 12, folder)() for source in sources]


@pytest.mark.parametrize("batch", [1, 3])
def test_all_write_the_same(batch: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    ours, *others = texts(*HF, batch=batch, folder=tmp_path)
    assert ours.shape == (batch, 12)
    # a text that repeats one token would be written by many a wrong model
    assert len(set(ours[0].tolist())) > 3
    for other in others:
        assert torch.equal(ours, other)


def test_llama_writes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    ours, theirs = texts("everyformer", "llama.cpp", batch=1, folder=tmp_path)
    assert torch.equal(ours, theirs)


def test_how_much_is_the_same_is_told() -> None:
    one = torch.tensor([[1, 2, 3, 4]])
    assert writing.same(torch.tensor([[1, 2, 0, 4]]), one) == "3 of 4 tokens are the same"


@pytest.mark.parametrize("change", [{"precision": "bfloat16"}, {"device": "meta"}])
def test_what_cannot_be_measured_is_refused(change: dict[str, Any]) -> None:
    [point] = writing.measured(asked("everyformer"), dataclasses.replace(SMALL, **change))
    assert point.status == "refused"
    assert "on the CPU in float32" in point.detail


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("member", ["gpt", "aft-simple"])
def test_compiled_steps_take_turns_and_all_are_told_their_limit(
    member: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graphs = []

    def keep(*compiled: Any) -> None:
        graphs.append(compiled)
        build(*compiled)

    build = programs.build
    monkeypatch.setattr(programs, "build", keep)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    ours, made = writing.measured(asked("everyformer", writing.COMPILED, member=member), SMALL)
    assert (ours.status, made.status) == ("ok", "ok")
    assert made.detail.startswith("12 of 12 tokens are the same; ran a compiled program, ")
    assert ours.detail.startswith("ran ")
    assert "to begin" not in made.detail
    least = 12 * least_seconds(counted(ours), "cpu")
    assert ours.limit == made.limit == least
    assert graphs


def counted(point: Point) -> Counter:
    token = writing.token_of(point, SMALL)
    assert token is not None
    with torch.inference_mode(), Counter() as counter:
        token()
    return counter


def test_a_member_without_a_state_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a plug-in may be, which reads the whole text again for each token."""
    monkeypatch.setattr(writing, "initial_state", lambda model, rows: None)
    [ours] = writing.measured(asked("everyformer"), SMALL)
    assert (ours.status, ours.limit) == ("ok", None)


def test_compiled_steps_without_a_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="give lengths of texts to write"):
        importlib.import_module("everyformer.lab.bench.bench").bench(["gpt"], (64,), compile=True)


@pytest.mark.parametrize(("peers", "compile"), list(itertools.product((False, True), repeat=2)))
def test_what_was_asked_for_takes_turns(
    peers: bool, compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(measured: Any, points: Any, setting: Any) -> Any:
        return points, False

    module = importlib.import_module("everyformer.lab.bench.bench")
    monkeypatch.setattr(module, "_in_process", nothing)
    points = module.bench(["gpt", "rope"], (), write=(6,), peers=peers, compile=compile)
    made = (writing.COMPILED,) * compile
    others = writing.WRITTEN["gpt"] * peers
    assert [p.source for p in points] == ["everyformer", *made, *others, "everyformer", *made]


def test_a_token_in_the_middle_is_counted() -> None:
    """Weights are read once and keys and values of 6 and of 206 tokens, in float32."""
    few, many = (counted(asked("everyformer", length=length)[0]) for length in (12, 412))
    assert few.operations == many.operations
    assert many.read - few.read == 200 * 4 * 2 * 16 * 4


def test_llama_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    ours, theirs = writing.measured(asked("everyformer", "llama.cpp"), SMALL)
    assert ours.status == "ok"
    assert theirs.status == "refused"
    assert "pip install 'everyformer[llama]'" in theirs.detail


@pytest.mark.full("seconds each", parts=3)
def test_the_verb_measures_a_text_beside_its_peers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    sizes = ("--width", "16", "--heads", "2", "--seconds", "0.001", "--threads", "1")
    main(["bench", "gpt", "--lengths", "--write", "6", "--peers", *sizes, "--json"])
    points = {p["source"]: p for p in json.loads(capsys.readouterr().out)}
    assert tuple(points) == SOURCES
    assert points["everyformer"]["seconds"] > 0
    for source in HF[1:]:
        assert points[source]["detail"] == "6 of 6 tokens are the same"
