"""Numbers that float32 does not tell apart stay in float64."""

import numpy as np
import pytest

from everyformer.core.rounding import shortened, told_apart

AROUND_ZERO = np.linspace(-3.0, 3.0, 50)[:, None]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (AROUND_ZERO, "float32"),
        (AROUND_ZERO + 1e4, "float32"),
        (AROUND_ZERO + 1e9, "float64"),
        # one column is enough
        (np.concatenate((AROUND_ZERO, AROUND_ZERO + 1e9), 1), "float64"),
        ((AROUND_ZERO + 1e9).astype("float32"), "float32"),
        (AROUND_ZERO * 1e300, "float64"),
        (np.array([[1_700_000_001], [1_700_000_002]]), "float64"),
        # to the last digit
        (np.full((4, 2), 2.0**30), "float32"),
        (np.arange(5)[:, None] * 2**26, "float32"),
        (np.array([[np.nan, 2.0], [np.nan, 3.0]]), "float32"),
        (np.array([[np.nan], [1e9], [1e9 + 1]]), "float64"),
        (np.zeros((0, 2)), "float32"),
        (np.zeros((3, 0)), "float32"),
    ],
)
def test_numbers_are_short_where_that_leaves_them_apart(values: np.ndarray, dtype: str) -> None:
    short = shortened(values)
    assert (short.dtype, short.shape) == (dtype, values.shape)
    if dtype == "float64":
        np.testing.assert_array_equal(short, values)


def test_padding_does_not_count() -> None:
    series = np.stack([AROUND_ZERO + 1e9, np.zeros_like(AROUND_ZERO)])
    real = np.array([[True] * 50, [False] * 50])
    # with the zeros the deviation is of 5e8
    assert shortened(series).dtype == np.float32
    assert shortened(series, real).dtype == np.float64


def test_rounding_is_measured_by_the_deviation() -> None:
    # the largest gap of float32 below 2^24 is 1, half of it is moved
    assert told_apart(2.0**24, 1000.0)
    assert not told_apart(2.0**24, 999.0)
