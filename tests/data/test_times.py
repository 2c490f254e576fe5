"""Times as people write them: one meaning for a whole column."""

import numpy as np
import pytest

from everyformer.data.times import Times, read_times

JANUARY = ["2024-01-30", "2024-01-31", "2024-02-01"]


def read(cells: list[str]) -> Times:
    times = read_times(cells)
    assert isinstance(times, Times), times
    return times


def written(times: Times) -> list[str]:
    return [times.written(time) for time in times.values]


@pytest.mark.parametrize(
    "cells",
    [
        ["30.01.2024", "31.01.2024", "01.02.2024"],
        ["30/01/24", "31/01/24", "01/02/24"],
        ["01/30/2024", "01/31/2024", "02/01/2024"],
        ["20240130", "20240131", "20240201"],
        ["30 Jan 2024", "31 Jan 2024", "1 Feb 2024"],
        ["January 30, 2024", "January 31, 2024", "February 1, 2024"],
        ["2024-01-30T00:00:00Z", "2024-01-31T01:00:00+01:00", "2024-02-01T00:00:00Z"],
        ["2024-01-30 12:00 AM", "2024-01-31 12:00 AM", "2024-02-01 12:00 AM"],
        ["1706572800", "1706659200", "1706745600"],
        ["1706572800000", "1706659200000", "1706745600000"],
    ],
    ids=str,
)
def test_days_are_the_same_in_every_form(cells):
    assert written(read(cells)) == JANUARY


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["2024-01-31T00:30:00+01:00", "2024-01-31T01:30:00+01:00"], "2024-01-30T23:30:00"),
        (["2024Q2", "2024 Q3"], "2024-04-01"),
        (["2", "4.5"], "2"),
    ],
    ids=str,
)
def test_a_time_is_written_in_utc_and_a_number_as_it_is(cells, words):
    assert written(read(cells))[0] == words


@pytest.mark.parametrize(
    ("cells", "mixed"),
    [
        (["2024-01-30T01:00", "2024-01-30T02:00", "2024-01-30T03:00Z"], (2, 0)),
        (["2024-01-30T01:00+01:00", "2024-01-31"], (0, 1)),
        (["2024-01-30T01:00+01:00", "2024-01-30T02:00-05:00"], None),
        (["2024-01-30T01:00", "2024-01-30T02:00"], None),
    ],
    ids=str,
)
def test_the_first_row_with_a_zone_and_the_first_without_are_numbered(cells, mixed):
    assert read(cells).mixed == mixed


@pytest.mark.parametrize(
    "cells",
    [["01/02/2024", "02/02/2024", "03/02/2024"], ["01/02/2024", "01/03/2024", "01/04/2024"]],
    ids=["day first", "month first"],
)
def test_day_and_month_are_told_apart_by_even_distances(cells):
    assert np.unique(np.diff(read(cells).values)).tolist() == [86400]


@pytest.mark.parametrize(
    ("cells", "number"), [(["2024-01-01", "soon"], 1), (["a", "b"], 0), (["2024-13-01"], 0)]
)
def test_the_first_cell_that_is_no_time_is_numbered(cells, number):
    assert read_times(cells) == number
