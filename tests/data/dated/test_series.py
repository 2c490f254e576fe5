"""Series of tables: long and wide are one, gaps are NaN, guesses are said, faults are named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import ConfigError, DataError
from everyformer.data import DataConfig
from everyformer.data.dated.series import DatedSeries, read_series
from everyformer.data.sources import open_source

WIDE = """date,a,b
2024-01-01,1,10
2024-01-02,2,20
2024-01-03,3,
2024-01-05,5,50
"""
LONG = """day,shop,sold
2024-01-02,a,2
2024-01-01,a,1
2024-01-03,a,3
2024-01-05,a,5
2024-01-01,b,10
2024-01-02,b,20
2024-01-05,b,50
"""


@pytest.fixture
def read(tmp_path: Path):
    def reads(text: str, name: str = "series.csv", **options) -> DatedSeries:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with open_source(str(path)) as source:
            return read_series(source, DataConfig(source=str(path), **options))

    return reads


def values(series: DatedSeries) -> dict[str, list[float]]:
    parts = np.split(series.values, series.bounds[1:-1])
    return dict(zip(series.names, (part.tolist() for part in parts), strict=True))


EXPECTED = {"a": [1, 2, 3, np.nan, 5], "b": [10, 20, np.nan, np.nan, 50]}


@pytest.mark.parametrize("text", [WIDE, LONG], ids=["wide", "long"])
def test_a_long_table_and_a_wide_one_are_the_same_series(read, text):
    series = read(text)
    np.testing.assert_equal(values(series), EXPECTED)
    assert str(series.step) == "daily"
    assert series.ends.tolist() == [5, 10]
    assert "3 values missing" in series.notes
    assert np.diff(series.times)[:4].tolist() == [86400.0] * 4


@pytest.mark.parametrize("text", [WIDE, LONG], ids=["wide", "long"])
def test_a_series_begins_with_its_first_value_wherever_others_do(read, text):
    rows = {"2024-01-01,1,10": "2024-01-01,1,", "2024-01-01,b,10\n": ""}
    for one, other in rows.items():
        text = text.replace(one, other)
    series = read(text)
    assert values(series)["b"] == pytest.approx([20, np.nan, np.nan, 50], nan_ok=True)
    assert (series.times[series.bounds[1]] - series.times[0]) == 86400.0
    assert series.ends.tolist() == [5, 9]


def test_what_was_guessed_put_in_order_and_left_aside_is_said(read):
    text = LONG.replace("\n", ",9\n").replace("sold,9", "sold,rank")
    series = read(text, value_column=("sold",))
    assert "'rank' left aside" in series.notes
    assert series.notes[0] == "times from 'day', series from 'shop', values from 'sold'"
    assert "rows are put in order of time" in series.notes
    assert read(WIDE).notes[0] == "times from 'date', values from 'a' and 'b'"


def test_german_numbers_and_dates_between_semicolons(read):
    german = "Datum;a\n30.01.2024;1,5\n31.01.2024;-2,25\n01.02.2024;3\n"
    series = read(german, time_column="Datum")
    assert values(series) == {"a": [1.5, -2.25, 3.0]}


def test_a_table_is_read_as_another_where_it_has_its_columns(tmp_path: Path) -> None:
    def reads(text: str, usual: Any = None) -> DatedSeries:
        (tmp_path / "a.csv").write_text(text)
        with open_source(str(tmp_path / "a.csv")) as source:
            return read_series(source, DataConfig(source=str(tmp_path / "a.csv")), usual)

    usual = reads(LONG).columns
    said = {"time_column": "day", "series_column": ("shop",), "value_column": ("sold",)}
    assert usual == said
    rows = [f"{line},{'fine' if n else 'remark'}" for n, line in enumerate(LONG.splitlines())]
    with pytest.raises(ConfigError, match="'shop' or 'remark' may tell the series apart"):
        reads("\n".join(rows))
    # as JSON has them
    found = reads("\n".join(rows), {name: list(v) if name != "time_column" else v
                                    for name, v in usual.items()})  # fmt: skip
    assert values(found)["a"] == pytest.approx([1, 2, 3, np.nan, 5], nan_ok=True)
    # one that has not all of them is read by itself, and a wide table has none
    assert reads(LONG.replace("shop", "store"), usual).names == ("a", "b")
    assert reads(WIDE, usual).names == ("a", "b")
    assert reads(WIDE).columns == {}


@pytest.mark.parametrize("other", ["0,125", "2,5", "12,3456", "1,00800"])
def test_a_comma_before_three_digits_is_decimal_where_another_cell_shows_it(read, other):
    series = read(f"date;a\n2024-01-01;1,008\n2024-01-02;{other}\n2024-01-03;7\n")
    assert values(series) == {"a": [1.008, float(other.replace(",", ".")), 7]}


def test_json_lines_hold_the_same(read):
    rows = "\n".join(
        f'{{"time": "2024-01-0{day}", "a": {day}, "b": {10 * day}}}' for day in (1, 2, 3)
    )
    assert values(read(rows, "series.jsonl")) == {"a": [1, 2, 3], "b": [10, 20, 30]}


COVARIATES = """date,sold,offer,rain
2024-01-01,1,0,5
2024-01-02,2,1,6
2024-01-03,3,0,7
2024-01-04,,1,
"""


def test_rows_after_the_last_value_are_what_is_known_ahead(read):
    series = read(
        COVARIATES, value_column=("sold",), known_column=("offer",), past_column=("rain",)
    )
    assert series.ends.tolist() == [3]
    assert series.known[:, 0].tolist() == [0, 1, 0, 1]
    np.testing.assert_equal(series.past[:, 0], [5, 6, 7, np.nan])
    assert series.covariates == ("offer", "rain")


def test_columns_are_chosen_by_number_too(read):
    series = read(COVARIATES, time_column="1", value_column=("4",), known_column=("3",))
    assert values(series) == {"rain": [5, 6, 7, pytest.approx(np.nan, nan_ok=True)]}


def test_several_columns_tell_series_apart_and_each_value_column_is_one(read):
    text = "t,shop,item,x,y\n1,a,p,1,5\n2,a,p,2,6\n1,a,q,3,7\n2,a,q,4,8\n"
    series = read(text, series_column=("shop", "item"), value_column=("x", "y"))
    expected = {"a/p/x": [1, 2], "a/p/y": [5, 6], "a/q/x": [3, 4], "a/q/y": [7, 8]}
    assert values(series) == expected
    assert str(series.step) == "in steps of 1"


@pytest.mark.parametrize(
    "times", [["00:00", "00:10", "00:17"], ["00:00", "00:01", "09:59"]], ids=["uneven", "sparse"]
)
def test_irregular_times_are_counted_and_it_is_said(read, times):
    rows = "\n".join(f"2024-01-01 {clock},{n}" for n, clock in enumerate(times))
    series = read(f"time,a\n{rows}\n")
    assert values(series) == {"a": [0, 1, 2]}
    assert series.step.unit == "row"
    assert any(re.match("times are irregular.*round times", note) for note in series.notes)


def test_a_series_with_rarer_values_has_gaps_and_it_is_said(read):
    days = "".join(f"2024-01-{day:02},a,1\n" for day in range(1, 16))
    series = read(f"date,shop,x\n{days}2024-01-01,b,1\n2024-01-08,b,2\n2024-01-15,b,3\n")
    assert str(series.step) == "daily"
    assert "read daily, with gaps between the values of b (weekly)" in series.notes
    assert not any("gaps" in note for note in read(LONG).notes)


FAULTS = {
    "no times": ("a,b\n1,2\n3,4\n", {}, ConfigError, "none holds dates or is called like a time"),
    "a time that is none": (
        WIDE.replace("2024-01-03", "soon"), {}, DataError,
        "line 4: 'soon' in 'date' is no time like those before it; write",
    ),
    "nothing like a time": (
        WIDE.replace("2024-01-0", "reading "), {"time_column": "date"}, DataError,
        "line 2: 'reading 1' in 'date' is no time; write all",
    ),
    "an empty time": (
        WIDE.replace("2024-01-03", ""), {}, DataError, "line 4 has no time .* leave the row out$",
    ),
    "times of which some have a zone": (
        "time,a\n2024-01-01 00:00,1\n2024-01-01 01:00,2\n2024-01-01 02:00+01:00,3\n", {}, DataError,
        r"line 2: '2024-01-01 00:00' in 'time' has no zone, but '2024-01-01 02:00\+01:00' \(.*, "
        r"line 4\) has one; write the zone behind every time \(\+01:00\), or behind none$",
    ),
    "a time twice": (
        WIDE.replace("2024-01-03", "2024-01-02"), {}, DataError,
        "line 4: the time 2024-01-02 comes twice; name the column that tells series apart",
    ),
    "an hour twice": (
        "time,a\n2024-10-27 02:00,1\n2024-10-27 02:30,2\n2024-10-27 02:00,3\n", {}, DataError,
        r"T02:00:00 comes twice; .*, or, where clocks went back, write the zone .* \(\+01:00\)$",
    ),
    "a time twice in a series": (
        LONG.replace("2024-01-03", "2024-01-02"), {}, DataError,
        "the time 2024-01-02 of the series 'a' comes twice; .* rows out$",
    ),
    "words for numbers": (
        WIDE.replace("3,\n", "3,many\n"), {"value_column": ("b",)}, DataError,
        "line 4: 'many' in 'b' is no finite number",
    ),
    "thousands, or decimals": (
        'date,a,b\n2024-01-01,1,993\n2024-01-02,2,"1,008"\n2024-01-03,2,"1,040"\n', {}, DataError,
        "line 3: '1,008' in 'b' may be 1008 or 1.008; write the numbers of this column without",
    ),
    "covariates likewise": (
        'date,a,b\n2024-01-01,1,993\n2024-01-02,2,"1,008"\n', {"past_column": ("b",)}, DataError,
        "line 3: '1,008' in 'b' may be",
    ),
    "one observation": (
        "date,a\n2024-01-01,1\n2024-01-02,\n", {}, DataError, "'a' of .* has fewer than two values",
    ),
    "no numbers": ("date,a\n2024-01-01,x\n2024-01-02,y\n", {}, DataError, "none but the times"),
    "two that may tell series apart": (
        "date,shop,kind,a\n2024-01-01,x,u,1\n2024-01-02,x,u,2\n".replace("shop", "s"), {},
        ConfigError, "'s' or 'kind' may tell the series apart",
    ),
    "two that may be the values": (
        "date,shop,u,v\n2024-01-01,x,1,2\n2024-01-02,x,1,2\n", {}, ConfigError,
        "may have their values in 'u' or 'v'; name the column",
    ),
    "different frequency": (
        "date,shop,x\n2024-01-01,a,1\n2024-02-01,a,2\n2024-03-01,a,2\n2024-01-01 00:00,b,1\n"
        "2024-01-01 01:00,b,2\n2024-01-01 02:00,b,2\n2024-01-01 02:07,c,1\n2024-01-01 09:07,c,1\n",
        {}, DataError, "different frequency: 'a' is monthly, 'b' hourly",
    ),
    "a column for two things": (
        WIDE, {"value_column": ("a",), "known_column": ("a",)}, ConfigError,
        "'a' of .* is chosen for two things",
    ),
    "a column that there is not": (
        WIDE, {"value_column": ("c",)}, ConfigError, "no column 'c' for --data.value-column",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_read_is_named_in_one_sentence(read, fault):
    text, options, kind, words = FAULTS[fault]
    with pytest.raises(kind, match=words) as caught:
        read(text, **options)
    assert not re.search(r"\.\s", str(caught.value).replace("...", ""))


def test_a_text_is_no_table(read):
    with pytest.raises(DataError, match="is no table"):
        read("hello", "text.txt")


def test_an_encoding_that_is_no_utf_8_is_guessed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "orte.csv"
    rows = "date,Köln,Bern\n2024-01-01,1,2\n2024-01-02,3,4\n"
    path.write_bytes(rows.encode("windows-1252"))
    with open_source(str(path)) as source:
        series = read_series(source, DataConfig(source=str(path)))
    assert series.names == ("Köln", "Bern")
    assert any(note.startswith("read as windows-1252") for note in series.notes)
