"""Measures of classifiers against scikit-learn's and loops; intervals of what is no number."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    precision_score,
)
from torch import Tensor

from everyformer.tasks.classify.scores import ClassErrors
from everyformer.tasks.scores import perplexity, ratio

ROWS, CLASSES = 200, 4


def drawn(bias: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits (N, C) that know a little, and skewed classes (N,)."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([6.0, 3.0, 2.0, 1.0])
    y = torch.multinomial(weights, ROWS, replacement=True, generator=generator)
    logits = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    return logits + bias * torch.nn.functional.one_hot(y, CLASSES), y


def measured(z: Tensor, y: Tensor, majority: int | None = 0) -> dict[str, Any]:
    """What is found of rows that come in two batches."""
    errors = ClassErrors(CLASSES, majority, details=True)
    for rows in (slice(0, 77), slice(77, None)):
        errors.add(z[rows], y[rows])
    return errors.summary()


MEASURES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "macro_f1": lambda y, p: f1_score(y, p, average="macro"),
}


@pytest.mark.parametrize(("missing", "answered"), [(None, True), (0, True), (2, True), (2, False)])
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_measures_and_their_baselines_are_scikit_learns(
    missing: int | None, answered: bool
) -> None:
    z, y = drawn()
    if not answered:
        z[:, missing] = -100.0
    kept = torch.ones(ROWS, dtype=torch.bool) if missing is None else y != missing
    z, y = z[kept], y[kept]
    found, p, always = measured(z, y), z.argmax(1), torch.zeros_like(y)
    found["accuracy"] = float((p == y).double().mean())
    best = max(accuracy_score(y, torch.full_like(y, one)) for one in range(CLASSES))
    assert found["held_out_majority_accuracy"] == pytest.approx(best)
    for name, literal in MEASURES.items():
        assert found[name] == pytest.approx(literal(y, p)), name
        assert found[f"majority_{name}"] == pytest.approx(literal(y, always)), name
    assert found["confusion"] == confusion_matrix(y, p, labels=range(CLASSES)).tolist()
    literal_f1 = f1_score(y, p, average=None, labels=range(CLASSES), zero_division=0)
    precision = precision_score(y, p, average=None, labels=range(CLASSES), zero_division=0)
    for index, row in enumerate(found["by_class"]):
        assert (row["f1"] or 0.0) == pytest.approx(literal_f1[index])
        assert (row["precision"] or 0.0) == pytest.approx(precision[index])
        assert row["rows"] == int((y == index).sum())
        assert row["answers"] == int((p == index).sum())
        assert (row["recall"] is None) == (row["rows"] == 0)


def test_the_calibration_error_is_that_of_a_loop_over_fifteen_bins() -> None:
    z, y = drawn(3.0)
    confidence, p = (values.numpy() for values in z.softmax(1).max(1))
    literal = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            off = (p[inside] == y.numpy()[inside]).mean() - confidence[inside].mean()
            literal += inside.mean() * abs(off)
    found = measured(z, y)
    assert found["calibration_error"] == pytest.approx(literal)
    assert literal > 0.02
    bins = found["calibration"]
    assert sum(row["rows"] for row in bins) == ROWS
    filled = [row for row in bins if row["rows"]]
    assert all(row["from"] < row["confidence"] <= row["to"] for row in filled)
    weighed = sum(row["rows"] * row["confidence"] for row in bins if row["rows"])
    assert weighed / ROWS == pytest.approx(np.mean(confidence))


def test_certain_answers_are_in_the_last_bin() -> None:
    errors = ClassErrors(2, 0, details=True)
    errors.add(torch.tensor([[1000.0, 0.0], [0.0, 1000.0]]), torch.tensor([0, 0]))
    found = errors.summary()
    assert [row["rows"] for row in found["calibration"]] == [0] * 14 + [2]
    assert found["calibration_error"] == pytest.approx(0.5)


def test_the_interval_of_the_balanced_accuracy_is_that_of_independent_recalls() -> None:
    z, y = drawn()
    found, right = measured(z, y), z.argmax(1) == y
    squares = np.zeros(2)
    for index in range(CLASSES):
        hits, rows = int(right[y == index].sum()), int((y == index).sum())
        ends = binomtest(hits, rows).proportion_ci(method="wilson")
        squares += (np.array(ends) - hits / rows) ** 2
    low, high = found["balanced_accuracy_interval"]
    mean = found["balanced_accuracy"]
    assert np.allclose([mean - low, high - mean], squares**0.5 / CLASSES, rtol=1e-6)


def test_a_balanced_accuracy_of_few_rows_that_are_all_right_is_not_certain() -> None:
    errors = ClassErrors(2, 0)
    errors.add(10 * torch.eye(2).repeat(5, 1), torch.tensor([0, 1] * 5))
    found = errors.summary()
    assert found["balanced_accuracy"] == 1
    low, high = found["balanced_accuracy_interval"]
    # Wilson's of 5 of 5 is 0.5655 to 1: 1 - 0.4345 sqrt(2) / 2
    assert (low, high) == (pytest.approx(0.69277, abs=1e-5), pytest.approx(1))


def test_without_a_known_majority_it_is_the_commonest_that_is_read() -> None:
    z, y = drawn()
    found = measured(z, 3 - y, None)
    assert found["majority"] == 3
    assert found["majority_accuracy"] == pytest.approx(float((y == 0).double().mean()))


def test_sums_of_processes_add_up() -> None:
    z, y = drawn()
    first, second, whole = (ClassErrors(CLASSES, 0, True) for _ in range(3))
    for errors, rows in ((first, slice(50)), (second, slice(50, None)), (whole, slice(None))):
        errors.add(z[rows], y[rows])
    torch.testing.assert_close(first.sums + second.sums, whole.sums)


@pytest.mark.parametrize(("classes", "counted"), [(1000, True), (1001, False)])
def test_a_confusion_matrix_of_very_many_classes_is_not_counted(
    classes: int, counted: bool
) -> None:
    errors = ClassErrors(classes, 0, True)
    errors.add(torch.eye(classes)[:3], torch.tensor([0, 1, 5]))
    found = errors.summary()
    assert ("confusion" in found) == counted
    assert len(found["by_class"]) == classes
    assert found["balanced_accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(0.0, 1.0), (2.0, 7.38905609893065), (700.0, math.exp(700)), (800.0, math.inf),
     (math.inf, math.inf), (-math.inf, 0.0), (math.nan, math.nan)],
)  # fmt: skip
def test_a_perplexity_is_infinite_where_no_number_is_as_large(loss: float, expected: float) -> None:
    assert perplexity(loss) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("total", [math.inf, math.nan])
def test_a_sum_that_is_not_finite_has_no_interval(total: float) -> None:
    assert ratio(3, 6, 12, 5.0, 9.0, 10.0)[1] is not None
    mean, interval = ratio(3, 6, 12, total, total, total)
    assert not math.isfinite(mean)
    assert interval is None


def test_the_interval_of_a_mean_of_two_is_student_s() -> None:
    mean, interval = ratio(2, 2, 2, 18 + 20, 18**2 + 20**2, 18 + 20)
    assert mean == 19
    assert interval == pytest.approx([19 - 12.7062, 19 + 12.7062], abs=1e-3)
