"""Built-ins: the standard library's source, and generated tasks that obey their own rules."""

from typing import Any

import pytest
import torch
from data_files import Load

from everyformer.core.errors import ConfigError, DataError
from everyformer.data import DataConfig, load_dataset, synthetic
from everyformer.data.batch import Batch

DIGITS = 1
OPERATORS = {11: min, 12: max, 13: None, 14: lambda values: sum(values) % 10}


def test_the_standard_library_is_a_corpus_cut_between_files(load: Load) -> None:
    data = load("stdlib")
    assert 2_000_000 < len(data.train) + len(data.validation) <= 10_010_000
    assert 0.08 < len(data.validation) / len(data.train) < 0.15
    assert int(data.train[-1]) == int(data.validation[-1]) == data.tokenizer.separator
    assert data.split.startswith("Python 3.")
    assert data.bytes_per_token == 1.0


@pytest.mark.parametrize("name", ["copy", "listops", "reverse", "sort"])
def test_held_out_rows_do_not_depend_on_batch_size(name: str, load: Load) -> None:
    data = load(name, length=64)
    by_seven = torch.cat([b.inputs for b in data.validation_batches(7, limit=20)])
    by_four = torch.cat([b.inputs for b in data.validation_batches(4, limit=20)])
    assert torch.equal(by_seven, by_four)
    assert len(by_seven) == 20


def test_copy_scores_the_repetition_alone(load: Load) -> None:
    batch = load("copy", length=21, symbols=5).train_batch(0, 6, 0)
    assert batch.inputs.shape == (6, 20)
    assert (batch.targets[:, :10] == -100).all()
    assert torch.equal(batch.targets[:, 10:], batch.inputs[:, :10])
    assert not batch.inputs[:, 10].any()
    assert batch.scored == 60


@pytest.mark.parametrize(
    ("name", "rewrite"), [("copy", list), ("reverse", lambda row: row[::-1]), ("sort", sorted)]
)
@pytest.mark.parametrize(("length", "shortest", "longest"), [(256, 10, 20), (9, 5, 9), (2, 1, 2)])
def test_a_target_is_the_source_rewritten_and_ended(
    name: str, rewrite: Any, length: int, shortest: int, longest: int, load: Load
) -> None:
    data = load(name, "seq2seq", length=length, symbols=9)
    batch = data.train_batch(0, 200, 0)
    seen = set()
    for source, padding_mask, target in zip(
        batch.inputs, batch.padding_mask, batch.targets, strict=True
    ):
        *symbols, end = source[padding_mask].tolist()
        assert end == 0 < min(symbols)
        assert target[target >= 0].tolist() == [*rewrite(symbols), 0]
        assert torch.equal(target >= 0, padding_mask)
        seen.add(len(symbols))
    assert seen == set(range(shortest, longest + 1))
    assert batch.tokens == 2 * 200 * (longest + 1)
    assert (data.vocabulary, data.length, data.task) == (10, longest + 1, "seq2seq")


def test_listops_values_are_right(load: Load) -> None:
    data = load("listops", length=64)
    batch = data.train_batch(0, 60, 0)
    assert data.classes == tuple("0123456789")
    for row, padding_mask, value in zip(
        batch.inputs, batch.padding_mask, batch.targets.tolist(), strict=True
    ):
        tokens = row[padding_mask].tolist()
        assert 16 <= len(tokens) <= 64
        assert evaluate(tokens) == value


def evaluate(tokens: list[int]) -> int:
    """A reader of its own: a stack of open brackets."""
    stack: list[list[int]] = [[]]
    for token in tokens:
        if token in OPERATORS:
            stack.append([token])
        elif token == 15:
            operator, *values = stack.pop()
            assert 2 <= len(values) <= 10
            ordered, count = sorted(values), len(values)
            median = (ordered[(count - 1) // 2] + ordered[count // 2]) // 2
            apply = OPERATORS[operator]
            stack[-1].append(median if apply is None else apply(values))
        else:
            stack[-1].append(token - DIGITS)
    assert len(stack) == 1
    return stack[0][0]


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (
            "recall",
            {},
            ConfigError,
            "no built-in any more, but a probe: `--data mqar --data.options",
        ),
        ("listops", {"depth": 1, "length": 400}, DataError, "`data.depth=1`"),
        ("listops", {"length": 3}, ConfigError, "at least 4"),
        ("copy", {"task": "pixels"}, DataError, "only lm and seq2seq; digits can"),
        ("digits", {"task": "lm"}, DataError, "classify-image and pixels"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    name: str, options: dict[str, Any], error: type[Exception], message: str, load: Load
) -> None:
    with pytest.raises(error, match=message):
        load(name, options.pop("task", None), **options)


# waves


LENGTH = 400


def noiseless(task: str, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A thousand series without noise."""
    monkeypatch.setattr(synthetic, "NOISE", 0.0)
    return load_dataset(DataConfig(source="waves", length=LENGTH), task).train_batch(0, 1000, 0)


def test_a_series_changes_its_sign_twice_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = noiseless("regress-series", monkeypatch)
    signs = batch.inputs[..., 0].sign()
    changes = (signs[:, 1:] * signs[:, :-1] < 0).sum(1)
    assert float((changes - 2 * batch.targets[:, 0]).abs().max()) <= 2
    assert 1 <= float(batch.targets.min()) < 1.1
    assert 3.9 < float(batch.targets.max()) <= 4
    assert batch.targets.shape == (1000, 1)


def test_shapes_differ_by_how_much_of_them_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = noiseless("classify-series", monkeypatch)
    # root mean squares of a sine, a square and a sawtooth between -1 and 1
    for shape, size in enumerate((0.5**0.5, 1.0, 3**-0.5)):
        rows = batch.inputs[batch.targets == shape]
        assert len(rows) > 250
        assert float(rows.square().mean().sqrt()) == pytest.approx(size, abs=0.01)


def test_the_noise_is_normal_of_three_tenths() -> None:
    noisy = load_dataset(DataConfig(source="waves", length=LENGTH), "classify-series")
    batch = noisy.train_batch(0, 500, 0)
    square = batch.inputs[batch.targets == 1]
    assert float((square.abs() - 1).std()) == pytest.approx(0.3, abs=0.02)


def test_a_number_of_minus_a_hundred_is_scored() -> None:
    batch = Batch(torch.zeros(2, 3, 1), torch.tensor([[-100.0], [1.0]]))
    assert (batch.scored, batch.tokens) == (2, 6)
