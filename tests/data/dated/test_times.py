"""Times as people write them: one meaning for a whole column, and the step between them."""

import datetime

import numpy as np
import pytest

from everyformer.data.dated.times import Step, Times, read_times, step_of, written

JANUARY = ["2024-01-30", "2024-01-31", "2024-02-01"]


def read(cells: list[str]) -> Times:
    times = read_times(cells)
    assert isinstance(times, Times), times
    return times


def step(cells: list[str]) -> Step:
    times = read(cells)
    return step_of([times.values], times.dated)


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
        [datetime.date(2024, 1, 30), datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)],
    ],
    ids=str,
)
def test_days_are_the_same_in_every_form(cells):
    assert written(read(cells).values, True) == JANUARY


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-01-31T00:30:00+01:00", "2024-01-31T01:30:00+01:00"],
        [datetime.datetime(2024, 1, 30, hour, 30, tzinfo=datetime.UTC) for hour in (23, 0)],
    ],
    ids=str,
)
def test_times_with_a_zone_are_told_in_utc_and_it_is_said(cells):
    times = read(cells)
    assert times.note == "times are told in UTC"
    assert written(times.values, True)[0] == "2024-01-30T23:30:00"
    assert times.zoned
    assert written(times.values, True, times.zoned)[0] == "2024-01-30T23:30:00Z"
    plain = read(["2024-01-30T23:30:00"])
    assert (plain.note, plain.zoned) == (None, False)


def test_a_midnight_of_a_zone_keeps_its_clock():
    times = read(["2024-01-31T00:00:00+00:00", "2024-02-01T00:00:00+00:00"])
    assert written(times.values, True, True) == ["2024-01-31T00:00:00Z", "2024-02-01T00:00:00Z"]
    assert written(times.values, True) == ["2024-01-31", "2024-02-01"]


@pytest.mark.parametrize(
    ("cells", "mixed"),
    [
        (["2024-01-30T01:00", "2024-01-30T02:00", "2024-01-30T03:00Z"], (2, 0)),
        (["2024-01-30T01:00+01:00", "2024-01-31"], (0, 1)),
        ([datetime.date(2024, 1, 30), datetime.datetime(2024, 1, 31, tzinfo=datetime.UTC)], (1, 0)),
        (["2024-01-30T01:00+01:00", "2024-01-30T02:00-05:00"], None),
        (["2024-01-30T01:00", "2024-01-30T02:00"], None),
    ],
    ids=str,
)
def test_the_first_row_with_a_zone_and_the_first_without_are_numbered(cells, mixed):
    assert read(cells).mixed == mixed


@pytest.mark.parametrize(
    ("cells", "words", "season", "following"),
    [
        (JANUARY, "daily", 7, ["2024-02-02", "2024-02-03"]),
        (["2024-01-31", "2024-02-29", "2024-03-31"], "monthly", 12, ["2024-04-30", "2024-05-31"]),
        (["2024-01-30", "2024-03-30", "2024-04-30"], "monthly", 12, ["2024-05-30", "2024-06-30"]),
        (["2023-12-30", "2024-01-30", "2024-02-29"], "monthly", 12, ["2024-03-30"]),
        (["2023-12-31 06:00", "2024-01-31 06:00"], "monthly", 12, ["2024-02-29T06:00:00"]),
        (["2024Q1", "2024Q2"], "quarterly", 4, ["2024-07-01", "2024-10-01"]),
        (["2023-01", "2024-01"], "yearly", 1, ["2025-01-01", "2026-01-01"]),
        (["2024-01-01", "2024-01-08"], "weekly", 52, ["2024-01-15", "2024-01-22"]),
        (
            ["2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09"],
            "on weekdays", 5, ["2024-01-10", "2024-01-11"],
        ),
        (
            ["2024-01-01 00:00", "2024-01-01 00:15", "2024-01-01 01:00", "2024-01-01 01:15"],
            "every 15 minutes", 96, ["2024-01-01T01:30:00", "2024-01-01T01:45:00"],
        ),
        (["1", "2", "4"], "in steps of 1", 1, ["5", "6"]),
        (["2024-01-01", "2024-01-03", "2024-01-04", "2024-01-09"], "daily", 7, ["2024-01-10"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_step_is_named_has_a_season_and_goes_on(cells, words, season, following):
    times, found = read(cells), step(cells)
    assert (str(found), found.season) == (words, season)
    after = found.after(times.values[-1], np.arange(1, len(following) + 1))
    assert written(after, times.dated) == following


@pytest.mark.parametrize("unit", ["month", "weekday", "second"])
def test_the_index_of_what_comes_after_counts_the_steps(unit):
    found, at = (
        Step(unit, 3 if unit == "month" else 1.0 if unit == "weekday" else 900.0),
        1706572800,
    )
    steps = np.arange(0, 40)
    index = found.index(found.after(at, steps))
    np.testing.assert_array_equal(index - index[0], steps)


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["01/02/2024", "02/02/2024", "03/02/2024"], "day"),
        (["01/02/2024", "01/03/2024", "01/04/2024"], "month"),
    ],
)
def test_day_and_month_are_told_apart_by_even_distances_and_it_is_said(cells, first):
    times = read(cells)
    assert np.unique(np.diff(times.values)).tolist() == [86400]
    assert times.note == f"dates are read with the {first} first"


def test_odd_distances_are_no_grid():
    found = step(["2024-01-01 00:00", "2024-01-01 00:10", "2024-01-01 00:17"])
    assert (found.unit, found.season) == ("row", 1)


@pytest.mark.parametrize(
    ("cells", "number"), [(["2024-01-01", "soon"], 1), (["a", "b"], 0), (["2024-13-01"], 0)]
)
def test_the_first_cell_that_is_no_time_is_numbered(cells, number):
    assert read_times(cells) == number
