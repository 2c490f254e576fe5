"""Tables of features: unordered columns are no sequence, and a text among columns is one."""

from pathlib import Path
from typing import Any

import pytest
from data_files import Load, delimited, write

from everyformer.core.errors import DataError, EveryformerError

N = range(30)
CITIES = ("Wien", "Graz", "New York")
HOUSES = [(40 + 7 * n % 90, 1 + n % 5, CITIES[n % 3], 1000 * (n + 3)) for n in N]
HEADER = ("area", "rooms", "city", "price")


def columns(header: tuple[str, ...], make: Any) -> Any:
    """A header, and a row of each house by its number."""
    return [header, *(make(n, *house) for n, house in enumerate(HOUSES))]


TABLES: dict[str, Any] = {
    "with a header": [HEADER, *HOUSES],
    "without": HOUSES,
    "with ids": columns(("id", *HEADER), lambda n, *house: (f"H{n:03}x", *house)),
    "with dates": columns(("when", *HEADER), lambda n, *house: (f"2024-01-{n + 1} 12:00", *house)),
    "of numbers alone": columns(("area", "price"), lambda _, a, r, c, p: (a, p)),
    "with decimal commas": columns(HEADER, lambda _, a, *rest: (f"{a},5", *rest)),
    "with gaps": columns(HEADER, lambda n, a, r, c, p: (a, "" if n % 4 else r, c, p)),
    "of words": columns(("city", "kind", "price"), lambda n, a, r, c, p: (c, "ab"[n % 2], p)),
    "with a class": columns((*HEADER[:3], "class"), lambda n, a, r, c, p: (a, r, c, "ab"[n % 2])),
}


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_features_are_refused_with_what_does_them_well(
    name: str, label: bool, tmp_path: Path, load: Load
) -> None:
    rows = TABLES[name]
    path = write(tmp_path, {"a.csv": delimited(rows, ";")}) / "a.csv"
    options = {"label_column": str(len(rows[0])), "header": "no"} if label else {}
    if label and name != "without":
        options = {"label_column": rows[0][-1]}
    with pytest.raises(DataError) as error:
        load(path, "regress" if label else None, **options)
    said = str(error.value)
    columns = "4 columns and no header" if name == "without" else ", ".join(rows[0])
    assert columns in said
    for part in (
        "are no sequence",
        "HistGradientBoosting",
        "x (N, T, C) with y",
        "--data.text-col",
    ):
        assert part in said
    assert said.count(". ") == 0


TEXTS: dict[str, Any] = {
    "one column is text": [
        ("id", "said", "stars"),
        *((n, f"a day of {n} words", n % 5) for n in N),
    ],
    "names are text": [("id", "given", "gender"), *((n, f"Name{n}", "fm"[n % 2]) for n in N)],
    "letters are text": [("n", "dna", "y"), *((n, "ACGT" * 20, n % 2) for n in N)],
    "lists of numbers are text": [("n", "read", "y"), *((n, f"{n} 7 33 8 1", n % 2) for n in N)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_table_with_a_text_is_asked_for_its_columns(
    name: str, tmp_path: Path, load: Load
) -> None:
    rows = TEXTS[name]
    path = write(tmp_path, {"a.csv": delimited(rows)}) / "a.csv"
    with pytest.raises(EveryformerError, match=r"called like a .*; choose (it|them) with --data\."):
        load(path)
    data = load(path, text_column=rows[0][1], label_column=rows[0][2])
    assert len(data.labels) == len(N)


def test_digits_are_a_text_where_that_is_said(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.csv": delimited(TABLES["of numbers alone"])}) / "a.csv"
    data = load(path, "regress", text_column="area", label_column="price")
    assert data.labels[:, 0].tolist() == [row[3] for row in HOUSES]


def test_the_column_to_predict_may_be_of_many_words(tmp_path: Path, load: Load) -> None:
    rows = columns(HEADER, lambda n, a, r, c, p: (a, r, c, f"a house of kind {n % 2}"))
    path = write(tmp_path, {"a.csv": delimited(rows)}) / "a.csv"
    with pytest.raises(DataError, match="are no sequence"):
        load(path, label_column="price")
