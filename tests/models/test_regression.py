"""Models that answer a row with numbers, and the measures of their errors."""

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import Tensor

from everyformer.core import tasks
from everyformer.core.errors import GeneError, ShapeError, UnknownNameError
from everyformer.core.mask import Mask
from everyformer.models.build import configure, create_model
from everyformer.tasks.regress.scores import NumberErrors

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "max_length": 8}
MEAN, STD = (100.0, -3.0), (10.0, 0.5)
Y = torch.tensor([[90.0, -3.0], [125.0, -2.0], [101.0, -4.5]], dtype=torch.float64)


def read(task: str) -> tuple[dict[str, Any], Tensor]:
    """Options and three rows of inputs of a task."""
    torch.manual_seed(0)
    if task == "regress-text":
        return {"vocabulary": 9}, torch.randint(0, 9, (3, 7))
    if task == "regress-image":
        return {"image": (1, 4, 4), "patch": 2}, torch.rand(3, 1, 4, 4, dtype=torch.float64)
    return {"series": 2}, torch.randn(3, 7, 2, dtype=torch.float64)


TASKS = ("regress-text", "regress-image", "regress-series")


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_the_mean_square_in_standard_deviations(task: str) -> None:
    """A fresh model answers the mean of the training data."""
    options, inputs = read(task)
    model = create_model(
        "attention", task, target_mean=MEAN, target_std=STD, **SIZES, **options
    ).double()
    assert torch.equal(model(inputs).logits, torch.tensor([MEAN] * 3, dtype=torch.float64))
    torch.nn.init.normal_(model.pool.head.weight)  # type: ignore[union-attr, arg-type]
    out = model(inputs, targets=Y)
    p = out.logits
    squares = ((p - Y) / torch.tensor([10.0, 0.5])) ** 2
    torch.testing.assert_close(out.loss, squares.sum() / 6)
    assert float(p.detach().std(0).min()) > 0


def test_one_number_a_row_may_come_without_a_second_dimension() -> None:
    model = create_model("gmlp", "regress-series", series=2, **SIZES)
    x, y = torch.randn(3, 7, 2), torch.tensor([1.0, -100.0, 3.0])
    torch.testing.assert_close(model(x, targets=y).loss, model(x, targets=y[:, None]).loss)
    assert model(x, targets=y).loss.item() == pytest.approx((1 + 100**2 + 9) / 3)
    with pytest.raises(ShapeError, match=r"\(3, 1\) numbers, not \(3, 2\)"):
        model(x, targets=torch.randn(3, 2))


def test_series_are_standardised_by_the_training_datas_features() -> None:
    torch.manual_seed(0)
    plain = create_model("attention", "classify-series", series=2, classes=3, **SIZES)
    known = {"series_mean": (5.0, -1.0), "series_std": (2.0, 10.0)}
    model = create_model("attention", "classify-series", series=2, classes=3, **known, **SIZES)
    model.load_state_dict(plain.state_dict())
    for one in (plain, model):
        torch.nn.init.ones_(one.pool.head.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(3, 7, 2)
    scaled = x * torch.tensor([2.0, 10.0]) + torch.tensor([5.0, -1.0])
    torch.testing.assert_close(model(scaled).logits, plain(x).logits)


def test_what_stands_in_the_padding_of_a_series_does_not_matter() -> None:
    torch.manual_seed(0)
    model = create_model("attention", "regress-series", series=2, **SIZES).double()
    torch.nn.init.normal_(model.pool.head.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(1, 5, 2, dtype=torch.float64)
    padded = torch.cat((x, torch.full((1, 2, 2), math.nan, dtype=torch.float64)), 1)
    padding_mask = torch.tensor([[True] * 5 + [False] * 2])
    torch.testing.assert_close(
        model(padded, mask=Mask(padding_mask=padding_mask)).logits, model(x).logits
    )


@pytest.mark.parametrize(
    ("word", "options", "task"),
    [
        ("regress", {}, "regress-text"),
        ("regress", {"image": (1, 4, 4)}, "regress-image"),
        ("regress", {"series": 3}, "regress-series"),
        ("classify", {"series": 3}, "classify-series"),
        ("classify", {"image": (1, 4, 4)}, "classify-image"),
        ("classify", {}, "classify-text"),
    ],
)
def test_a_word_means_the_task_that_reads_what_is_given(word, options, task):
    assert configure("attention", word, **options).task == task
    with pytest.raises(UnknownNameError, match=word[:-1]):
        configure("attention", word[:-1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs series, how"),
        ({"series": 2, "series_mean": (1.0,)}, "1 numbers, but there are 2 at each step"),
        ({"series": 2, "target_mean": (1.0, 2.0)}, "target_mean has 2 numbers and target_std 1"),
    ],
)
def test_facts_of_a_series_that_do_not_fit_are_refused(options: Any, said: str) -> None:
    with pytest.raises(Exception, match=said) as found:
        create_model("attention", "regress-series", **SIZES, **options)
    assert isinstance(found.value, GeneError) or "target_mean" in said


@pytest.mark.parametrize("columns", [1, 2])
def test_the_measures_are_scikit_learns_for_each_number(columns: int) -> None:
    torch.manual_seed(0)
    y = torch.randn(40, columns, dtype=torch.float64) * 7 + 3
    p = y + torch.randn(40, columns, dtype=torch.float64)
    mean, std = (2.5,) * columns, (4.0,) * columns
    errors = NumberErrors(mean, std)
    for rows in (slice(0, 13), slice(13, 40)):
        errors.add(p[rows], y[rows])
    found = errors.summary()
    constant = torch.full_like(y, 2.5)
    for index, one in enumerate(found.get("by_number", [found])):
        true, answered, usual = y[:, index], p[:, index], constant[:, index]
        assert one["mae"] == pytest.approx(mean_absolute_error(true, answered))
        assert one["rmse"] == pytest.approx(math.sqrt(mean_squared_error(true, answered)))
        assert one["r2"] == pytest.approx(r2_score(true, answered))
        assert one["mean_mae"] == pytest.approx(mean_absolute_error(true, usual))
        assert one["mean_rmse"] == pytest.approx(math.sqrt(mean_squared_error(true, usual)))
        assert one["mean_r2"] == pytest.approx(r2_score(true, usual))
    assert [one["number"] for one in found.get("by_number", [])] == [1, 2][: 2 * (columns > 1)]
    assert found["r2"] == pytest.approx(r2_score(y, p))
    assert found["mean_r2"] == pytest.approx(r2_score(y, constant))
    assert found["loss"] == pytest.approx(mean_squared_error(y, p) / 16)
    losses = (((p - y) / 4) ** 2).mean(1)
    half = 2.022690920036761 * float(losses.std(unbiased=True)) / math.sqrt(40)
    low, high = found["loss_interval"]
    assert (high - low) / 2 == pytest.approx(half, rel=1e-6)
    assert found["sequences"] == found["scored"] == 40
    alike = NumberErrors((0.0,), (1.0,))
    alike.add(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0]))
    assert "r2" not in alike.summary()


def test_what_is_said_of_several_numbers_does_not_depend_on_their_units() -> None:
    torch.manual_seed(0)
    y = torch.randn(40, 2, dtype=torch.float64) * torch.tensor([3.0, 0.5])
    p = y + torch.randn(40, 2, dtype=torch.float64)
    found = []
    for units in ((1.0, 1.0), (1e6, 1e-3)):
        scale = torch.tensor(units, dtype=torch.float64)
        errors = NumberErrors((0.0, 0.0), (3.0 * units[0], 0.5 * units[1]))
        errors.add(p * scale, y * scale)
        found.append(errors.summary())
    first, second = ({k: v for k, v in one.items() if k != "by_number"} for one in found)
    assert first.keys() == second.keys()
    assert all(second[name] == pytest.approx(value) for name, value in first.items())
    spread = torch.tensor([3.0, 0.5], dtype=torch.float64)
    rms, constant = (math.sqrt(float((e / spread).square().mean())) for e in (p - y, y))
    assert first["scaled_rmse"] == pytest.approx(rms)
    assert first["mean_scaled_rmse"] == pytest.approx(constant)
    low, high = first["scaled_rmse_interval"]
    assert [low**2, high**2] == pytest.approx(first["loss_interval"])
    # of the second number the errors are twice what the mean makes
    said = "better than always giving the mean for 1 of 2 numbers; not surely for number 2"
    assert [tasks.TASKS["regress-series"].against_baseline(one) for one in found] == [said, said]


@pytest.mark.parametrize("task", ["regress-image", "regress-series"])
def test_tokens_of_pictures_and_series_are_scaled_as_embeddings_are(task: str) -> None:
    options, inputs = read(task)
    plain, scaled = (
        create_model("attention", task, scale_embedding=on, **SIZES, **options).double()
        for on in (False, True)
    )
    torch.nn.init.normal_(scaled.pool.head.weight)  # type: ignore[union-attr, arg-type]
    plain.load_state_dict(scaled.state_dict())
    enter: Any = plain.patches if task == "regress-image" else plain.steps
    with torch.no_grad():
        enter.weight.mul_(8**0.5)
        enter.bias.mul_(8**0.5)
    torch.testing.assert_close(scaled(inputs).logits, plain(inputs).logits)


FAR = 1_700_000_000.0


def test_numbers_that_float32_does_not_tell_apart_are_answered_in_float64() -> None:
    """z are the same as of numbers around 0, and what is answered is told to the last digit."""
    options, inputs = read("regress-text")
    near = create_model("attention", "regress-text", target_std=(9.0,), **SIZES, **options)
    torch.nn.init.normal_(near.pool.head.weight)  # type: ignore[union-attr, arg-type]
    far = create_model(
        "attention", "regress-text", target_mean=(FAR,), target_std=(9.0,), **SIZES, **options
    )
    far.load_state_dict(near.state_dict())
    y = torch.tensor([[-3.0], [4.0], [9.5]])
    out = far(inputs, targets=y.double() + FAR)
    torch.testing.assert_close(out.loss, near(inputs, targets=y).loss)
    assert out.logits.dtype == torch.float64
    torch.testing.assert_close(
        (out.logits - FAR).float(), near(inputs).logits, rtol=1e-5, atol=1e-5
    )


def test_half_precision_rounds_deviations_and_no_means() -> None:
    """In bfloat16 1000 and 1003 are one number."""
    options, inputs = read("regress-text")
    made = {"target_mean": (1000.0,), "target_std": (1.0,), **SIZES, **options}
    model = create_model("attention", "regress-text", **made)
    y = torch.tensor([[997.0], [1003.0], [1000.5]])
    with torch.autocast("cpu", torch.bfloat16):
        out = model(inputs, targets=y)
    assert out.loss.item() == pytest.approx((9 + 9 + 0.25) / 3)
    torch.nn.init.normal_(model.pool.head.weight)  # type: ignore[union-attr, arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        half = model(inputs).logits
    torch.testing.assert_close(half, model(inputs).logits, rtol=0, atol=0.1)


def test_series_far_from_zero_are_read_as_those_around_it() -> None:
    torch.manual_seed(0)
    known = {"series_mean": (FAR, 0.0), "series_std": (2.0, 1.0)}
    far = create_model("attention", "regress-series", series=2, **known, **SIZES)
    known = {"series_mean": (0.0, 0.0), "series_std": (2.0, 1.0)}
    near = create_model("attention", "regress-series", series=2, **known, **SIZES)
    torch.nn.init.normal_(far.pool.head.weight)  # type: ignore[union-attr, arg-type]
    near.load_state_dict(far.state_dict())
    x = torch.randn(3, 7, 2, dtype=torch.float64)
    there = x + torch.tensor([FAR, 0.0], dtype=torch.float64)
    torch.testing.assert_close(far(there).logits, near(x).logits, rtol=0, atol=1e-5)
