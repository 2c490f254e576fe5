"""Fan charts: a dot a true value, as long as dots do not hide the forecast."""

from pathlib import Path

import numpy as np
import pytest

from everyformer.report.forecast import DOTTED, Fan, draw_fans

ORANGE = "fill: #d55e00"
"""of each dot, and of that in the legend"""


@pytest.mark.parametrize(("horizon", "dots"), [(3, 4), (DOTTED, DOTTED + 1), (DOTTED + 1, 0)])
def test_dots_are_as_many_as_true_values_and_none_where_these_are_many(
    horizon: int, dots: int, tmp_path: Path
) -> None:
    fan = Fan("a", np.arange(5.0), np.arange(horizon * 1.0), np.zeros((horizon, 3)), "now")
    drawn = draw_fans([fan], (0.1, 0.5, 0.9), tmp_path / "fans.svg")
    assert drawn.read_text(encoding="utf-8").count(ORANGE) == dots
