"""Metrics are rows of a table: written, said and ranked by it."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import Metric
from everyformer.comparison.summary import rank


@pytest.mark.parametrize(
    ("metric", "value", "written", "said", "axis", "best"),
    [
        ("bits_per_byte", 2.0, "2.000", "2.000 bits per byte (lower is better)",
         "bits per byte (lower is better)", 1.0),
        ("accuracy", 0.5, "50.0%", "50.0% of the validation set right",
         "accuracy (%, higher is better)", 3.0),
        ("mae", 12.3456, "12.35", "a mean absolute error of 12.35 (lower is better)",
         "mean absolute error (lower is better)", 1.0),
        ("rmse", 0.001234, "0.001234", "a root mean square error of 0.001234 (lower is better)",
         "root mean square error (lower is better)", 1.0),
        ("r2", -0.25, "-0.250", "an R² of -0.250 (1 is best)", "R² (higher is better)", 3.0),
    ],
)  # fmt: skip
def test_a_metric_is_written_said_and_ranked(
    metric: Metric, value: float, written: str, said: str, axis: str, best: float
) -> None:
    how = METRICS[metric]
    assert (how.written(value), how.sentence(value), how.axis) == (written, said, axis)
    rows: Any = [{"status": "done", "quality": quality} for quality in (2.0, 1.0, 3.0)]
    assert next(row for row in rank(rows, metric)) == {"status": "done", "quality": best}


def test_every_metric_has_a_row() -> None:
    assert set(METRICS) == set(get_args(Metric))
