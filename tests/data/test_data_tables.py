"""Tables as people have them: delimiters, headers, columns, labels; what is said and refused."""

import json
import tracemalloc
from csv import QUOTE_ALL
from pathlib import Path
from typing import Any

import pytest
from data_files import Files, Load, delimited, write

from everyformer.core.errors import ConfigError, DataError, EveryformerError
from everyformer.data import DataConfig
from everyformer.data.headers import decimal_commas
from everyformer.data.sources import open_source
from everyformer.data.table import Table
from everyformer.data.tables import labelled_reader, open_table

ROWS = [
    ("good, really; good", "yes"),
    ("so-so | dull", "no"),
    ('he said "wow"', "yes"),
    ("two\nlines", "no"),
    ("schön", "yes"),
    ("b c", "no"),
]


def read(path: Path, **options: Any) -> list[tuple[str, str]]:
    """Text and label of every row."""
    config = DataConfig(source=str(path), **options)
    with open_source(config.source) as source:
        reader = labelled_reader(source, config, source.entries[0])
        result = reader.rows(source.entries[0])
        return [(row.text(0), row.label(1)) for row in result]


def table_of(path: Path, **options: Any) -> Table:
    config = DataConfig(source=str(path), **options)
    with open_source(config.source) as source:
        return open_table(source, config, source.entries[0])


def many(rows: int, labels: Any = lambda n: "ab"[n % 2], header: str = "text,label\n") -> str:
    return header + "".join(f"some text {n},{labels(n)}\n" for n in range(rows))


NAMED = [("text", "label"), *ROWS]
JSON = "".join(json.dumps({"id": n, "text": t, "label": c}) + "\n" for n, (t, c) in enumerate(ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", delimited(NAMED)),
        ("a.csv", delimited(NAMED, ";", "\r\n")),
        ("a.csv", "\ufeff" + delimited(NAMED, ";", "\r\n", QUOTE_ALL)),
        ("a.csv", delimited(NAMED, "\t")),
        ("a.csv", delimited(NAMED, "|")),
        ("a.csv", "\ufeffsep=;\r\n" + delimited(NAMED, ";", "\r\n")),
        ("a.csv", '"sep=|"\n' + delimited(NAMED, "|")),
        ("a.tsv", delimited(NAMED, "\t")),
        ("a.tsv", delimited(NAMED)),
        ("a.csv", delimited([(*row, "", "") for row in NAMED], ";")),
        ("a.csv", delimited([NAMED[0], *((*row, "", "") for row in ROWS)])),
        ("a.csv", delimited([*NAMED[:3], *NAMED[3:]]).replace("b c", "\n\nb c")),
        ("a.csv", delimited([(label, text) for text, label in NAMED])),
        ("a.jsonl", JSON),
    ],
)
def test_delimiters_quotes_and_order_of_columns_change_nothing(
    name: str, content: str, tmp_path: Path
) -> None:
    assert read(write(tmp_path, {name: content}) / name) == ROWS


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_delimiter_inside_cells_is_none(delimiter: str, tmp_path: Path) -> None:
    """Every row holds every delimiter, all but one between quotes, and as often."""
    rows = [(f"a,b;c\td|e {n} " + ",;\t|" * (n % 3), "xy"[n % 2]) for n in range(30)]
    content = delimited([("text", "label"), *rows], delimiter, quoting=QUOTE_ALL)
    assert read(write(tmp_path, {"a.csv": content}) / "a.csv") == rows


def test_a_separator_that_the_first_line_does_not_decide_is_asked(tmp_path: Path) -> None:
    """Commas divide these lines as evenly; tabs of a .tsv are what divides it."""
    content = "te,xt;la,bel\na,b;x,y\nc,d;z,w\n"
    path = write(tmp_path, {"a.csv": content}) / "a.csv"
    with pytest.raises(DataError, match="commas or semicolons: say which with"):
        table_of(path, header="yes")
    table = table_of(path, header="yes", separator="semicolon")
    assert table.names == ("te,xt", "la,bel")
    assert [*table.rows([0, 1])] == [(2, ["a,b", "x,y"]), (3, ["c,d", "z,w"])]
    assert table_of(path, header="yes", separator="comma").names == ("te", "xt;la", "bel")
    (tmp_path / "a.tsv").write_text(content.replace(";", "\t"))
    assert table_of(tmp_path / "a.tsv", header="yes").names == ("te,xt", "la,bel")
    path.write_text("sep=;\n" + content)
    table = table_of(path, header="yes")
    assert [*table.rows([0])] == [(3, ["a,b"]), (4, ["c,d"])]
    path.write_text("sep=;\n" + content + "e\n")
    with pytest.raises(DataError, match=r"line 5 has 1 column between semicolons, line 2 has 2"):
        table_of(path, header="yes")


def test_quotes_between_tabs_are_text_unless_they_must_be_there(tmp_path: Path) -> None:
    spoken = ['"Yes", she said\tja', '"No"\tnein', 'a "b"\tc']
    write(tmp_path, {"a.tsv": "\n".join(spoken), "b.tsv": '"a ""b"" c"\tja\nd\tnein\n'})
    options = {"header": "no", "text_column": "1", "label_column": "2"}
    assert read(tmp_path / "a.tsv", **options)[0][0] == '"Yes", she said'
    assert read(tmp_path / "b.tsv", **options) == [('a "b" c', "ja"), ("d", "nein")]


@pytest.mark.parametrize(
    ("content", "options", "names"),
    [
        ("review_x,stars_given\ngood film,5\nbad film,1\n", {}, 2),
        ("Review Text,How good (1-5)\ngood film,5\nbad film,\n", {}, 2),
        ("Text,foo\na,b\n", {}, 2),
        ("foo,bar\na,b\n", {"label_column": "BAR"}, 2),
        ("foo,bar\na,b\n", {"header": "yes"}, 2),
        ("en,de\na,b\n", {}, 2),
        ("n,en,de\nx,a,b\n", {}, 3),
        ("French,English\na,b\n", {}, 2),
        ("review_x,stars_given\ngood film,5\n", {"header": "no"}, 0),
        # what follows may be a row
        ("Meinung,Urteil\n" + "gut so,ja\nnicht gut,nein\n" * 2, {}, None),
        ("good film,5\nbad film,1\n", {}, None),
        ("text,5\nbad film,1\n", {}, None),
        (",5\nbad film,1\n", {}, None),
        ("it,good\nbad film,sad\n", {}, None),
        ("en,en\na,b\n", {}, None),
        ("text,pos\nfine,neg\ntext,pos\n", {}, None),
        ("Go now.\tGeh jetzt.\nRun away.\tLauf weg.\n", {}, None),
        ("good film,5\nbad film,1\n", {"label_column": "2"}, None),
        ("one\ntwo\n", {}, None),
    ],
)
def test_a_header_is_certain_or_asked(
    content: str, options: dict[str, Any], names: int | None, tmp_path: Path
) -> None:
    path = write(tmp_path, {"a.csv": content}) / "a.csv"
    if names is None:
        with pytest.raises(DataError, match=r"whether the first line of .* names the columns: say"):
            table_of(path, **options)
    else:
        assert len(table_of(path, **options).names) == names


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("text,label,other\nfine,good,x\n", {}),
        ("other,Sentiment,REVIEW\nx,good,fine\n", {}),
        ("Other,one,two\nx,fine,good\n", {"text_column": "ONE", "label_column": "Two"}),
        (
            "other,one,two\nx,fine,good\n",
            {"text_column": "2", "label_column": "3", "header": "yes"},
        ),
        ("label,one,two\nx,fine,good\n", {"text_column": "one", "label_column": "two"}),
        ("label,what\ngood,fine\n", {}),
        ("label,what\nfine,good\n", {"text_column": "label", "label_column": "what"}),
        ("text,what\ngood,fine\n", {"label_column": "text"}),
        ("3,2\nfine,good\n", {"text_column": "2", "label_column": "3", "header": "yes"}),
    ],
)
def test_columns_are_chosen_by_name_by_number_or_are_obvious(
    content: str, options: dict[str, Any], tmp_path: Path
) -> None:
    result = read(write(tmp_path, {"a.csv": content}) / "a.csv", **options)
    assert result == ([("good", "fine")] if content.startswith("3") else [("fine", "good")])


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            "text,mood,x\na,b,c\n",
            {"label_column": "mod"},
            "no column 'mod' for `data.label_column`, but the columns text, mood, x; did you mean "
            "'mood'",
        ),
        (
            "text,label\na,b\n",
            {"text_column": "zzz"},
            "for `data.text_column`, but the columns text, label$",
        ),
        ("text,label\na,b\n", {"text_column": "3"}, "no column '3'"),
        (
            "long words " * 9 + ",,b\na,b,c\n",
            {"text_column": "x"},
            r"columns long.{,40}\[...\], '', b$",
        ),
        (
            "a b,c\na d,c\n",
            {"header": "no", "text_column": "a b"},
            "2 columns and no header; number",
        ),
        (
            "text,label,class\na,b,c\n",
            {},
            "could be the label, 'label' and 'class'.*`data.label_c",
        ),
        ("text,text,label\na,b,c\n", {"text_column": "text"}, "2 columns called.*number.*: 1 or 2"),
        ("text,x,y\na,b,c\n", {}, "columns text, x, y.*none is called like a label"),
        (
            "text,year\na,1999\nb,2001\n",
            {},
            "none is called like a label.*`data.label_column` NAME",
        ),
        ("label,n\na,1999\nb,2001\n", {}, "none is called like a text.*are no sequence"),
        (
            "x,y,z\na,b,c\n",
            {"header": "yes"},
            r"like a label \(.*\) or a text \(.*\); choose them with `data.label_column` NAME and "
            "`data.text_column` NAME$",
        ),
        ("x,y,label\na,b,c\n", {}, "none is called like a text.*`data.text_column` NAME"),
        (
            "a b,1,x y\nc d,2,z w\n",
            {"header": "no"},
            "3 columns and no header.*`data.label_column` NUMBER and `data.text_column` NUMBER, f",
        ),
        ("x,y\na b,c\n", {"header": "yes"}, "choose them with `data.label_column` NAME and"),
        ("text,label\na,b\n", {"text_column": "1", "label_column": "text"}, "both 'text'"),
        ("one\ntwo\n", {"header": "no"}, "1 column.*takes `task=lm` `data.text_column=1`"),
        ("text,label\nx,y\nz\n", {}, r"line 3 has 1 column between commas, line 1 has 2"),
        ("text,label\nx,y\n\nz,y,w\n", {}, r"line 4 has 3 columns between commas, line 1 has 2"),
        ('text,label\n"x,y\nz,y\n', {}, "line 2: the quotes.*opens a cell must close it"),
        (
            b"text,label\nx,y\nsch\xf6n,y\n",
            {"encoding": "utf-8"},
            "line 3 is not UTF-8.*iconv -f LATIN1",
        ),
        ("\n\n", {}, "is empty"),
        ("text,label\n", {}, r"a header \(text, label\) and no rows"),
        (many(60, lambda n: "" if n % 5 == 1 else n % 2), {}, "12 texts without a label: line 3, "),
        (
            many(60, lambda n: "" if n % 5 == 1 else n % 2),
            {},
            "line 38 and 4 more; fill.*`data.unlabelled=skip`",
        ),
        (many(60, lambda n: f"own {n}"), {}, "60 different labels in 60 rows, so 'label' is prob"),
        (many(60, lambda _: "same"), {}, "only one class, 'same'"),
        (many(60, lambda n: n % 21), {}, "holds 21 different numbers: predict .* `task=regress`"),
        (many(60, lambda n: n % 2 / 4), {}, "holds 2 different numbers.*`data.label_column`$"),
    ],
)
def test_unsound_tables_are_refused_with_the_way_out(
    content: str | bytes, options: dict[str, Any], message: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.csv": content}) / "a.csv"
    with pytest.raises(EveryformerError, match=message) as error:
        load(path, "classify-text", **options)
    assert "a.csv" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2: no field 'label', only text"),
        ('{"text": "a", "label": null}\n', "1 text without a label: line 1; fill the label in"),
        ('{"text": 3, "label": "x"}\n', "line 1: 'text' holds 3, which is no text"),
        ('{"text": "a", "label": [1]}\n', r"line 1: 'label' holds \[1\], which is no label"),
        ('{"text": "a", "label": 1.5}\n', "'label' of .* holds 1 different number: predict"),
    ],
)
def test_unsound_json_lines_are_refused_with_their_place(
    content: str, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(EveryformerError, match=message):
        load(write(tmp_path, {"a.jsonl": content}) / "a.jsonl", "classify-text")


def test_a_chosen_column_of_many_whole_numbers_is_classes(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.csv": many(210, lambda n: n % 70)}) / "a.csv"
    assert load(path, label_column="label").classes == tuple(map(str, range(70)))


def test_the_first_line_says_what_the_table_holds(tmp_path: Path, load: Load) -> None:
    rows = many(40, lambda n: "pos" if n % 4 else "neg", "text,label\n").replace(",", ";")
    data = load(write(tmp_path, {"a.csv": rows + "alone;odd\n ;neg\n"}) / "a.csv", length=8)
    assert data.split == (
        "41 texts of 3 classes: pos (30), neg (10), odd (1); always answering 'pos' is right for "
        "75.0% of those held out; a draw of "
        "10% within each class (seed 0): 37 training and 4 validation texts; 1 empty ones left "
        "out; text from 'text', label from 'label'; cells are divided by semicolons; "
        "40 of the 41 texts are cut to 8 tokens"
    )


def test_counts_and_the_majority_are_in_the_summary(tmp_path: Path, load: Load) -> None:
    """The commonest class of training, a, has one of the six texts that are held out."""
    files = {
        "train.csv": many(6, lambda n: "ab"[n > 3]),
        "test.csv": many(6, lambda n: "ab"[n > 0]),
    }
    summary = load(write(tmp_path / "x", files)).summary()
    assert (summary["classes"], summary["counts"]) == (["a", "b"], [5, 7])
    assert summary["majority"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"train.csv": many(9), "test.csv": many(9).replace("label", "lebal", 1)},
            "no column 'label'",
        ),
        ({"train.csv": many(9), "test.csv": many(9, header="")}, "no column 'text'"),
    ],
)
def test_tables_of_one_source_are_alike(
    files: Files, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(EveryformerError, match=message):
        load(write(tmp_path / "x", files), "classify-text")


def test_tables_of_one_source_may_order_their_columns_anew(tmp_path: Path, load: Load) -> None:
    test = delimited([("label", "text"), ("a", "x"), ("b", "y")], ";")
    files = {"train.csv": many(9), "test.csv": test, "README.md": "about it"}
    data = load(write(tmp_path / "x", files))
    (batch,) = data.validation_batches(2)
    assert batch.targets.tolist() == [0, 1]
    assert batch.inputs[:, 0].tolist() == [120, 121]


@pytest.mark.full("3 s: the table is long")
def test_a_long_table_is_never_in_memory(tmp_path: Path) -> None:
    """100,000 rows of 2 MB are read, and less than a quarter of that is held at any time."""
    path = tmp_path / "a.csv"
    path.write_text(
        "text,label\n" + '"some text, of a row",yes\nand of another one,no\n' * 50_000 * 1
    )
    config = DataConfig(source=str(path))
    tracemalloc.start()
    try:
        with open_source(config.source) as source:
            reader = labelled_reader(source, config, source.entries[0])
            rows = sum(1 for _ in reader.rows(source.entries[0]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 100_000
    assert peak < path.stat().st_size / 4


def test_rows_without_a_label_are_left_out_where_that_is_said(tmp_path: Path, load: Load) -> None:
    rows = many(60, lambda n: "" if n % 5 == 1 else n % 2)
    path = write(tmp_path, {"a.csv": rows}) / "a.csv"
    data = load(path, "classify-text", unlabelled="skip")
    assert (data.counts, data.classes) == ((24, 24), ("0", "1"))
    assert "; 12 without a label left out" in data.split
    full = write(tmp_path, {"b.csv": many(60, lambda n: n % 2)}) / "b.csv"
    assert "without a label" not in load(full, unlabelled="skip").split
    with pytest.raises(ConfigError, match=r"`data\.unlabelled` has no meaning for the task lm"):
        load(path, "lm", text_column="text", unlabelled="skip")
    with pytest.raises(DataError, match="12 texts without a label"):
        load(path, "classify-text")


@pytest.mark.parametrize(
    ("cells", "commas"),
    [
        (["3,82", "4", "text, more"], True),
        (["-0,5", "+1,25"], True),
        (["3,82", "4.5"], False),
        (["4.5", "7"], False),
        (["a", "4", ""], False),
    ],
)
def test_decimal_commas_are_those_of_a_table_without_points(cells, commas) -> None:
    assert decimal_commas(cells) is commas


# tables of features, of which no column is a text

N = range(30)
CITIES = ("Wien", "Graz", "New York")
HOUSES = [(40 + 7 * n % 90, 1 + n % 5, CITIES[n % 3], 1000 * (n + 3)) for n in N]
COLUMNS = ("area", "rooms", "city", "price")


def houses(header: tuple[str, ...], make: Any) -> Any:
    """A header, and a row of each house by its number."""
    return [header, *(make(n, *house) for n, house in enumerate(HOUSES))]


FEATURES: dict[str, Any] = {
    "with a header": [COLUMNS, *HOUSES],
    "without": HOUSES,
    "of numbers alone": houses(("area", "price"), lambda _, a, r, c, p: (a, p)),
    "with decimal commas": houses(COLUMNS, lambda _, a, *rest: (f"{a},5", *rest)),
    "with a class": houses((*COLUMNS[:3], "class"), lambda n, a, r, c, p: (a, r, c, "ab"[n % 2])),
}


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("name", FEATURES)
def test_features_are_refused_with_what_does_them_well(
    name: str, label: bool, tmp_path: Path, load: Load
) -> None:
    rows, options = FEATURES[name], {"header": "no" if name == "without" else "yes"}
    path = write(tmp_path, {"a.csv": delimited(rows, ";")}) / "a.csv"
    if label:
        options["label_column"] = str(len(rows[0]))
    with pytest.raises(ConfigError) as error:
        load(path, "regress" if label else None, **options)
    said = str(error.value)
    columns = "4 columns and no header" if name == "without" else ", ".join(rows[0])
    assert all(
        part in said
        for part in (columns, "are no sequence", "HistGradientBoosting", "x (N, T, C) with y")
    )
    assert "`data.text_column`" in said
    assert said.count(". ") == 0


TEXTS: dict[str, Any] = {
    "one column is text": [("id", "said", "stars"), *((n, f"day {n} words", n % 5) for n in N)],
    "names are text": [("id", "given", "gender"), *((n, f"Name{n}", "fm"[n % 2]) for n in N)],
    "lists of numbers are text": [("n", "read", "y"), *((n, f"{n} 7 33 8", n % 2) for n in N)],
    "digits are a text": [("n", "read", "y"), *((n, n + 100, n % 2) for n in N)],
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_among_columns_is_the_one_that_is_said(
    name: str, tmp_path: Path, load: Load
) -> None:
    rows = TEXTS[name]
    path = write(tmp_path, {"a.csv": delimited(rows)}) / "a.csv"
    with pytest.raises(ConfigError, match=r"called like a .*; choose (it|them) with `data\."):
        load(path)
    data = load(path, text_column=rows[0][1], label_column=rows[0][2])
    assert data.tokenizer.decode(data.tokens).startswith(str(rows[1][1]))
    assert len(data.labels) == len(N)
