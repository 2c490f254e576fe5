"""Windows over a long text: every target once, the context that was promised, equal modes."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from training_stand_ins import tiny_text

import everyformer as ef
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data import DataConfig, load_dataset
from everyformer.data.dataset import Dataset
from everyformer.models.base import Model
from everyformer.training.evaluate import _count, evaluate
from everyformer.training.long_text import evaluate_long


def model_of(length: int, member: str = "rope") -> Model:
    torch.manual_seed(0)
    model = ef.create_model(
        member, "lm", width=8, heads=2, layers=1, vocabulary=11, max_length=length
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model.double().eval()


def by_hand(
    model: Model, tokens: list[int], length: int, stride: int
) -> tuple[list[float], list[int]]:
    """Loss of each target with a window of its own, and how many tokens it had before it."""
    losses, contexts = [], []
    for target in range(1, len(tokens)):
        # the first window that holds the target, as far as windows start at multiples of stride
        number = max(0, -(-(target - length) // stride))
        start = min(number * stride, len(tokens) - 1 - length)
        window = torch.tensor([tokens[start:target]])
        logits = model(window).logits[0, -1]
        losses.append(float(F.cross_entropy(logits[None], torch.tensor([tokens[target]])).detach()))
        contexts.append(target - start)
    return losses, contexts


CASES = [(7, 40), (7, 8), (7, 9), (5, 36), (16, 17), (4, 33)]
STRIDES = [(7, 40, 1), (7, 40, 3), (7, 8, 2), (7, 9, 4), (5, 36, 3), (16, 17, 2), (4, 33, 4)]


@pytest.mark.parametrize(("length", "held_out", "stride"), STRIDES)
def test_sliding_windows_equal_one_window_a_target(length: int, held_out: int, stride: int) -> None:
    data, model = tiny_text(length, held_out, held_out), model_of(length)
    each: list[torch.Tensor] = []
    found = evaluate_long(model, data, mode="sliding", stride=stride, batch=3, each=each)
    expected, contexts = by_hand(model, data.validation.tolist(), length, stride)
    assert found["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-9)
    # in the order of the text
    assert torch.cat(each).tolist() == pytest.approx(expected, rel=1e-9)
    assert found["scored"] == held_out - 1
    assert (found["window"], found["stride"]) == (length, stride)
    assert min(contexts[length:], default=length) >= length - stride + 1


def test_every_target_is_scored_exactly_once() -> None:
    for (length, held_out), stride in itertools.product(CASES, (1, 2, 3, None)):
        # tokens that tell their place
        places = np.arange(held_out, dtype=np.uint16)
        data = replace(tiny_text(length, held_out, held_out), stride=stride, validation=places)
        scored = [b.targets[b.targets >= 0] for b in data.validation_batches(4)]
        assert torch.cat(scored).tolist() == list(range(1, held_out)), (length, held_out, stride)


@pytest.mark.parametrize(("length", "held_out"), CASES)
def test_a_stride_of_a_whole_window_is_windows_side_by_side(length: int, held_out: int) -> None:
    data, model = tiny_text(length, held_out, held_out), model_of(length)
    plain = evaluate(model, data, batch=3)
    for options in ({"mode": "sliding", "stride": length}, {"mode": "nonoverlapping"}):
        found = evaluate_long(model, data, batch=3, **options)
        assert {name: found[name] for name in plain} == plain
        assert (found["window"], found["stride"]) == (length, length)


def test_what_does_not_fit_is_refused() -> None:
    data, model = tiny_text(7, 40, 40), model_of(7)
    for stride in (0, 8):
        with pytest.raises(ConfigError, match="`stride` must be 1 to 7"):
            evaluate_long(model, data, mode="sliding", stride=stride)
    with pytest.raises(ConfigError, match="side by side have no `stride`"):
        evaluate_long(model, data, stride=3)
    copy: Dataset = load_dataset(DataConfig(source="copy", length=8))
    with pytest.raises(UnsupportedError, match="leave `mode` and `each` out"):
        evaluate_long(model, copy, mode="sliding")


@pytest.mark.parametrize(("member", "held_out"), [("attention", 33), ("linear", 30),
                                                  ("aft-local", 33), ("rope", 30)])  # fmt: skip
def test_reading_in_order_is_one_pass_over_the_whole_text(member: str, held_out: int) -> None:
    model, data = model_of(64, member).double().eval(), tiny_text(8, held_out, held_out)
    tokens = torch.from_numpy(data.validation.astype(np.int64))[None]
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits[0]
    each: list[torch.Tensor] = []
    found = evaluate_long(model, data, mode="recurrent", each=each)
    expected = F.cross_entropy(logits, tokens[0, 1:], reduction="none")
    torch.testing.assert_close(torch.cat(each), expected, rtol=0, atol=1e-9, check_dtype=False)
    assert found["scored"] == held_out - 1
    assert found["loss"] == pytest.approx(float(expected.mean()), abs=1e-9)


@pytest.mark.parametrize(("in_step", "other", "stops"), [(True, 1.0, True), (True, 0.0, False),
                                                         (False, 1.0, False)])  # fmt: skip
def test_processes_whose_passes_need_all_stop_together(in_step, other, stops):
    """Another process is to stop, and this one is not."""
    world = SimpleNamespace(in_step=in_step, sum=lambda values: [values[0] + other])
    read = iter([None, None])
    assert _count(read, None, None, world, lambda: False) is stops
    assert len([*read]) == (1 if stops else 0)


def test_bits_are_not_told_of_a_beginning_whose_bytes_differ(tmp_path: Path) -> None:
    """Its first characters are one byte each, the others three."""
    text = "ab ba " * 30 + "\u6728\u6797\u68ee" * 60
    (tmp_path / "t.txt").write_text("".join(sorted(text)) * 2 + text, encoding="utf-8")
    for tokenizer, bits in (("chars", False), ("bytes", True)):
        source = {"source": str(tmp_path / "t.txt"), "cache": str(tmp_path / tokenizer)}
        config = DataConfig(**source, tokenizer=tokenizer, length=8, validation=0.3)
        data = load_dataset(config, "lm")
        model = ef.create_model(
            "rope", "lm", width=8, heads=2, layers=1, vocabulary=data.vocabulary, max_length=8
        )
        for how, told in (({"limit": 4}, bits), ({}, True)):
            found = evaluate_long(model, data, mode="recurrent", **how)
            assert ("bits_per_byte" in found) == told
