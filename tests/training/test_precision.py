"""Precision auto: the clock decides, once for a run, which is the one that was chosen."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training_stand_ins import TinyData, train_tiny

from everyformer.training import loop, precision
from everyformer.training.checkpoint import checkpoints, read_state
from everyformer.training.logging import read_metrics
from everyformer.training.parallel.world import World
from everyformer.training.precision import (
    CALLS,
    ROUNDS,
    largest_product,
    ratio_of_steps,
    slow_product,
)

HERE = World(torch.device("cpu"))
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def steps_that_take(**seconds: list[float]) -> Any:
    """A step that takes so many seconds in each precision, one after the other."""
    left = {kind: iter(each) for kind, each in seconds.items()}
    return lambda kind: next(left[kind])


def test_the_ratio_is_of_medians_and_the_first_call_does_not_count():
    many = [0.2] * ROUNDS
    step = steps_that_take(float32=[90.0, 0.3, *many], bfloat16=[1.0, 0.9, *(0.1 for _ in many)])
    assert ratio_of_steps(step, HERE) == pytest.approx(0.1 / 0.2)


@pytest.mark.parametrize(("seconds", "rounds"), [(6.0, 1), (2.0, 3), (0.1, 1 + ROUNDS)])
def test_long_steps_are_timed_less_often(seconds, rounds):
    calls: list[str] = []

    def step(kind: str) -> float:
        calls.append(kind)
        return seconds

    assert ratio_of_steps(step, HERE) == 1
    assert calls == ["float32", "bfloat16"] * (1 + rounds)


@pytest.mark.parametrize(
    ("ratio", "chosen", "words"),
    [
        (0.5, "bfloat16", "a step in bfloat16 takes 0.50x the time of one in float32 here"),
        (0.95, "float32", "0.95x the time of one in float32 here, too little to be worth"),
        (3.0, "float32", "a step in bfloat16 takes 3.00x the time of one in float32 here"),
    ],
)
def test_the_faster_one_is_chosen_where_it_pays_and_said(
    ratio, chosen, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(precision, "slow_product", lambda *_: None)
    monkeypatch.setattr(precision, "ratio_of_steps", lambda *_: ratio)
    result = train_tiny(tmp_path / "run", precision="auto", steps=3, show=True)
    assert result.precision == chosen
    assert f"training in {chosen}: " in (said := capsys.readouterr().err)
    assert words in said


@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_the_run_is_the_one_that_was_asked_for_bit_by_bit(chosen, tmp_path, monkeypatch):
    """Timing leaves no trace in weights, moving numbers, order of data or dropout."""
    asked = {"model": {"dropout": 0.2}, "steps": 4, "ema": 0.9, "accumulate": 2}
    train_tiny(tmp_path / "asked", precision=chosen, **asked)
    monkeypatch.setattr(precision, "slow_product", lambda *_: None)
    timed = precision.ratio_of_steps

    def ratio(*arguments: Any) -> float:
        assert timed(*arguments) > 0
        return 0.1 if chosen == "bfloat16" else 10.0

    monkeypatch.setattr(precision, "ratio_of_steps", ratio)
    train_tiny(tmp_path / "auto", precision="auto", **asked)
    weights = [
        load_file(checkpoints(tmp_path / name / "checkpoints")[-1] / "model.safetensors")
        for name in ("asked", "auto")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_training_and_evaluation_are_in_the_same_precision(tmp_path, monkeypatch):
    evaluate, asked = loop.evaluate, []

    def noted(*arguments: Any, precision: str, **options: Any) -> Any:
        asked.append(precision)
        return evaluate(*arguments, precision=precision, **options)

    monkeypatch.setattr(loop, "evaluate", noted)
    losses = []
    for kind in ("float32", "bfloat16"):
        train_tiny(tmp_path / kind, precision=kind, steps=1)
        rows = read_metrics(tmp_path / kind / "metrics.jsonl")
        losses.append(next(row["loss"] for row in rows if "loss" in row))
    assert asked == ["float32", "bfloat16"]
    assert losses[0] != losses[1]


def test_what_was_chosen_stays_when_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "slow_product", lambda *_: None)
    monkeypatch.setattr(precision, "ratio_of_steps", lambda *_: 0.5)
    out = tmp_path / "run"
    train_tiny(out, precision="auto", steps=2)
    assert read_state(checkpoints(out / "checkpoints")[-1]).precision == "bfloat16"
    monkeypatch.setattr(precision, "ratio_of_steps", lambda *_: pytest.fail("timed again"))
    assert train_tiny(out, resume=True, precision="auto", steps=4).precision == "bfloat16"


def of_times(monkeypatch: pytest.MonkeyPatch, **seconds: Any) -> list[tuple[int, int, int]]:
    """Products that take so many seconds by their sides; the list fills with those tried."""
    tried: list[tuple[int, int, int]] = []

    def taken(sides: Any, dtype: torch.dtype, _: Any) -> float:
        tried.append(sides)
        return float(seconds[DTYPES[dtype]](sides))

    monkeypatch.setattr(precision, "_seconds", taken)
    return tried


def test_a_product_is_tried_in_growing_parts_until_it_is_slow(monkeypatch):
    slow = {"float32": lambda _: 1.0, "bfloat16": lambda s: 1.0 if s[0] < 200 else 7}
    tried = of_times(monkeypatch, **slow)
    words = slow_product((300, 700, 100), HERE)
    assert words == "a product of 256 x 256 x 100 takes 7x as long in bfloat16 as in float32 here"
    assert tried[::2] == [(64, 64, 64), (128, 128, 100), (256, 256, 100)]
    # or to its whole
    tried = of_times(monkeypatch, float32=lambda _: 1.0, bfloat16=lambda _: 1.9)
    assert slow_product((300, 700, 100), HERE) is None
    assert tried[-1] == (300, 700, 100)
    assert slow_product(None, HERE) is None


def test_what_a_product_takes_to_begin_is_not_slowness(monkeypatch):
    """On a processor with tiles 64 takes five times as long, and 512 a third."""
    taken = {64: (5e-6, 25e-6), 128: (6e-5, 14e-5), 256: (95e-6, 40e-6), 512: (7e-4, 2e-4)}
    of_times(monkeypatch, float32=lambda s: taken[s[0]][0], bfloat16=lambda s: taken[s[0]][1])
    assert slow_product((512, 512, 512), HERE) is None
    of_times(monkeypatch, float32=lambda s: taken[s[0]][0], bfloat16=lambda s: 12 * taken[s[0]][0])
    words = slow_product((512, 512, 512), HERE)
    assert words == "a product of 128 x 128 x 128 takes 12x as long in bfloat16 as in float32 here"


def test_seconds_are_those_of_the_quickest_call(monkeypatch):
    clock = iter([0, 1, 100, 107, 200, 203, 300, 305])
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert CALLS == 3
    assert precision._seconds((2, 3, 4), torch.bfloat16, HERE.device) == 3


def test_the_largest_matrix_is_multiplied_with_all_positions_of_a_batch():
    model = nn.Sequential(nn.Linear(8, 40), nn.LayerNorm(40), nn.Linear(40, 9))
    batch = TinyData().train_batch(0, 4, 0)
    assert largest_product(model, batch, HERE) == (batch.tokens, 40, 9)
    assert largest_product(nn.LayerNorm(3), batch, HERE) is None


def test_a_slow_product_spares_the_steps_and_is_said_of_what_was_asked_for(
    tmp_path, monkeypatch, capsys
):
    of_times(monkeypatch, float32=lambda _: 1.0, bfloat16=lambda _: 30.0)
    monkeypatch.setattr(precision, "ratio_of_steps", lambda *_: pytest.fail("timed"))
    assert train_tiny(tmp_path / "auto", precision="auto", steps=2).precision == "float32"
    asked = train_tiny(tmp_path / "asked", precision="bfloat16", steps=2, show=True)
    assert asked.precision == "bfloat16"
    assert "takes 30x as long in bfloat16 as in float32 here: with precision float32, or auto," in (
        capsys.readouterr().err
    )
