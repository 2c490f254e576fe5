"""Intervals and perplexities where a loss is no finite number."""

import math

import pytest

from everyformer.training.measures import perplexity, ratio


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(0.0, 1.0), (2.0, 7.38905609893065), (700.0, math.exp(700)), (800.0, math.inf),
     (math.inf, math.inf), (-math.inf, 0.0)],
)  # fmt: skip
def test_a_perplexity_is_infinite_where_no_number_is_as_large(loss: float, expected: float) -> None:
    assert perplexity(loss) == pytest.approx(expected)


def test_what_is_no_number_has_no_perplexity() -> None:
    assert math.isnan(perplexity(math.nan))


@pytest.mark.parametrize("total", [math.inf, math.nan])
def test_a_sum_that_is_not_finite_has_no_interval(total: float) -> None:
    assert ratio(3, 6, 12, 5.0, 9.0, 10.0)[1] is not None
    mean, interval = ratio(3, 6, 12, total, total, total)
    assert not math.isfinite(mean)
    assert interval is None
