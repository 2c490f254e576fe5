"""Pictures beside a table that names them: classes and numbers, and tables that do not fit."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import Files, Load, delimited, pack, picture, write

from everyformer.core.errors import ConfigError, DataError

COUNT = 12
NAMES = [f"{n}.png" for n in range(COUNT)]
PICTURES = {name: picture(10 * n) for n, name in enumerate(NAMES)}
ROWS = [(name, 10 * n + 0.5, "cat" if n % 3 else "dog") for n, name in enumerate(NAMES)]
HEADER = ("file_name", "age", "breed")


def table(rows: Any = ROWS, header: tuple[str, ...] = HEADER, delimiter: str = ",") -> str:
    return delimited([header, *rows], delimiter)


def jsonl(rows: Any = ROWS) -> str:
    return "\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in rows)


def shades(data: Any, rows: np.ndarray) -> list[int]:
    return data.pixels[rows][:, 0, 0, 0].tolist()


FORMS = {
    "metadata.csv": table(),
    "metadata.tsv": table(delimiter="\t"),
    "metadata.jsonl": jsonl(),
    "ages.csv": table(delimiter=";"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_a_column_of_numbers_is_what_each_picture_is_to_answer(
    name: str, packed: bool, tmp_path: Path, load: Load
) -> None:
    files = PICTURES | {name: FORMS[name]}
    source = pack(tmp_path / "x.zip", files) if packed else write(tmp_path / "x", files)
    data = load(source, "regress", label_column="age")
    assert (data.task, data.kind, data.classes) == ("regress-image", "images", ())
    assert data.labels.tolist() == [[shade + 0.5] for shade in shades(data, np.arange(COUNT))]
    train = data.labels[data.train_rows]
    assert data.numbers.mean == pytest.approx([train.mean()])
    assert data.numbers.std == pytest.approx([train.std()])
    assert data.split.startswith("12 pictures with numbers from 0.5 to 110.5; always answering")
    assert "pictures from 'file_name', label from 'age'" in data.split


@pytest.mark.parametrize("task", ["classify", None])
def test_a_column_of_classes_is_what_each_picture_shows(
    task: str | None, tmp_path: Path, load: Load
) -> None:
    data = load(write(tmp_path / "x", PICTURES | {"pets.csv": table()}), task, label_column="breed")
    assert (data.task, data.classes) == ("classify-image", ("cat", "dog"))
    shown = [data.classes[label] for label in data.labels]
    assert shown == [ROWS[shade // 10][2] for shade in shades(data, np.arange(COUNT))]
    assert "12 pictures of 2 classes: cat (8), dog (4)" in data.split


@pytest.mark.parametrize("task", ["pixels", None])
def test_the_class_of_a_table_may_be_told_to_a_model_that_draws(
    task: str | None, tmp_path: Path, load: Load
) -> None:
    source = write(tmp_path / "x", PICTURES | {"pets.csv": table()})
    data = load(source, task, label_column="breed", labels=True)
    assert (data.task, data.classes) == ("pixels", ("cat", "dog"))
    batch = data.train_batch(0, 4, 0)
    assert [data.classes[n] for n in batch.labels] == [
        ROWS[int(image[0, 0, 0]) // 10][2] for image in batch.inputs
    ]


def test_one_folder_shows_no_class_where_a_table_does(tmp_path: Path, load: Load) -> None:
    files = {f"images/{name}": content for name, content in PICTURES.items()}
    text = table(header=("image", "age", "label"))
    for place in ("labels.csv", "images/labels.csv"):
        source = write(tmp_path / place.replace("/", "-"), files | {place: text})
        for task in (None, "classify"):
            assert load(source, task).classes == ("cat", "dog")
    with pytest.raises(ConfigError, match="none is called like a label"):
        load(write(tmp_path / "y", files | {"pets.csv": table()}), "classify")
    with pytest.raises(DataError, match="only one class, 'images'"):
        load(write(tmp_path / "z", files), "classify")


def test_a_table_alone_is_no_pictures_to_who_reads_pictures(tmp_path: Path, load: Load) -> None:
    source = write(tmp_path / "x", PICTURES | {"ages.csv": table()}) / "ages.csv"
    with pytest.raises(DataError, match=r"no pictures.*the folder or zip.*lies beside"):
        load(source, "regress", label_column="age", able=("classify-image", "regress-image"))


def test_folders_show_the_class_unless_a_column_is_chosen(tmp_path: Path, load: Load) -> None:
    files = {f"{'ab'[n % 2]}/{name}": PICTURES[name] for n, name in enumerate(NAMES)}
    source = write(tmp_path / "x", files | {"pets.csv": table()})
    assert load(source, "classify").classes == ("a", "b")
    assert load(source, "classify", label_column="breed").classes == ("cat", "dog")


@pytest.mark.parametrize("form", ["i/{}", "d/i/{}", "./d/i/{}", "{}"])
@pytest.mark.parametrize("column", ["file_name", "path"])
def test_a_row_writes_the_path_from_its_table_or_the_whole_or_the_name(
    form: str, column: str, tmp_path: Path, load: Load
) -> None:
    files = {f"d/i/{name}": content for name, content in PICTURES.items()}
    rows = [(f"{n}", form.format(name), 10 * n) for n, name in reversed([*enumerate(NAMES)])]
    files["d/metadata.csv"] = table(rows, ("number", column, "age"))
    data = load(write(tmp_path / "x", files), "regress", label_column="age")
    assert data.labels[:, 0].tolist() == shades(data, np.arange(COUNT))


def test_metadata_in_the_folders_of_a_split_keeps_it(tmp_path: Path, load: Load) -> None:
    files: dict[str, Any] = {}
    for part, rows in (("train", ROWS[:9]), ("test", ROWS[9:])):
        called = [(f"{n}.png", *row[1:]) for n, row in enumerate(rows)]  # alike in both
        files |= {f"{part}/{n}.png": PICTURES[row[0]] for n, row in enumerate(rows)}
        files[f"{part}/metadata.csv"] = table(called)
    data = load(write(tmp_path / "x", files | {"other.csv": "a,b\n1,2"}), "regress",
                label_column="age")  # fmt: skip
    assert "the source's own train/ and test/: 9 training and 3 validation pictures" in data.split
    assert data.labels[data.validation_rows, 0].tolist() == [
        s + 0.5 for s in shades(data, data.validation_rows)
    ]


@pytest.mark.parametrize("missing", [1, 5])
def test_pictures_that_no_row_names_are_left_aside_and_told_of(
    missing: int, tmp_path: Path, load: Load
) -> None:
    source = write(tmp_path / "x", PICTURES | {"ages.csv": table(ROWS[missing:])})
    data = load(source, "regress", label_column="age")
    assert len(data.labels) == len(data.pixels) == COUNT - missing
    said = {
        1: "1 picture that no row names left aside: 0.png",
        5: "5 pictures that no row names left aside: 0.png, 1.png, 2.png ...",
    }
    assert said[missing] in data.split


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "a row whose file is not there": (
        table([*ROWS, ("x.png", 3, "cat"), ("y/1.png", 4, "dog")]), {"label_column": "age"},
        "2 rows of the table name no picture in .*'x.png' \\(line 14\\), 'y/1.png' \\(line 15\\)",
    ),
    "a row without a file": (
        table([*ROWS, ("", 3, "cat")]), {"label_column": "age"},
        "1 row of the table names no picture .*line 14",
    ),
    "a file named twice": (
        table([*ROWS, ROWS[3]]), {"label_column": "age"},
        "line 14 names the picture '3.png' again, which line 5 has named before",
    ),
    "no column of file names": (
        table([row[1:] for row in ROWS], HEADER[1:]), {"label_column": "age"},
        "has the columns age, breed, and none of them names the pictures",
    ),
    "two columns of file names": (
        table(header=("path", "age", "image")), {"label_column": "age"},
        "2 columns that could name the pictures, 'path' and 'image': call the one .* file_name",
    ),
    "the column of the files": (
        table(), {"label_column": "file_name"}, "'file_name' .* names the pictures; choose another"
    ),
    "a cell that is no number": (
        table([*ROWS[:3], ("3.png", "old", "cat"), ("4.png", "old", "dog"), *ROWS[5:]]),
        {"label_column": "age"}, "'age' of .* holds 'old', where `task=regress` needs numbers",
    ),
    "a cell that is one of two numbers": (
        table([(name, "1,008" if name == "3.png" else age, kind) for name, age, kind in ROWS]),
        {"label_column": "age"}, "'age' of .* holds '1,008', which may be 1008 or 1.008; write",
    ),
    "an empty cell": (
        table([*ROWS[:3], ("3.png", "", "cat"), *ROWS[4:]]), {"label_column": "age"},
        "has 1 picture without a label: line 5",
    ),
}  # fmt: skip
OTHERS: dict[str, tuple[Files, str | None, dict[str, Any], str]] = {
    **{
        name: (PICTURES | {"ages.csv": text}, "regress", options, said)
        for name, (text, options, said) in BAD.items()
    },
    "numbers without a table": (
        PICTURES, "regress", {}, "pictures without numbers.*metadata.csv.*npz"
    ),
    "a column where nothing is answered": (
        PICTURES | {"a.csv": table()}, "pixels", {"label_column": "age"}, "`data.labels`"
    ),
    "a header where no table is read": (
        PICTURES | {"a.csv": table()}, "pixels", {"header": "no"}, "`data.header` has no meaning"
    ),
    "several tables": (
        PICTURES | {"a.csv": table(), "b.csv": table()}, "regress", {"label_column": "age"},
        "2 tables beside its pictures, a.csv, b.csv: call the one that is meant metadata.csv",
    ),
    "a name of several pictures": (
        {f"{d}/{name}": PICTURES[name] for name in NAMES for d in "ab"} | {"t.csv": table()},
        "regress", {"label_column": "age"}, "line 2: '0.png' may be a/0.png, b/0.png; write",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_what_does_not_fit_is_refused(case: str, tmp_path: Path, load: Load) -> None:
    files, task, options, said = OTHERS[case]
    with pytest.raises((DataError, ConfigError)) as raised:
        load(write(tmp_path / "x", files), task, **options)
    assert re.search(said, str(raised.value))


def test_pictures_without_a_label_are_left_out_where_that_is_said(
    tmp_path: Path, load: Load
) -> None:
    source = table([*ROWS[:3], ("3.png", "", "cat"), *ROWS[4:]])
    folder = write(tmp_path / "x", {**PICTURES, "labels.csv": source})
    data = load(folder, "regress", label_column="age", unlabelled="skip")
    assert len(data.labels) == len(ROWS) - 1
    assert "1 without a label left out" in data.split
