"""What is read of the words that people give: sentences, lines, tables, pictures, arrays."""

import itertools
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answering import reader
from PIL import Image

from everyformer.core.errors import ConfigError, DataError, EveryformerError
from everyformer.tasks.prediction.inputs import Reading, _unique, open_inputs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of every kind of file."""
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo, three\n")
    Path("notes").mkdir()
    Path("wide.txt").write_bytes("schön\r\nzwei\n".encode("utf-16"))
    Path("notes/a.txt").write_text("first\nsecond\n")
    Path("notes/b.txt").write_text("third")
    Path("t.csv").write_text('id,review,stars\n7,"a, b",2\n8,"c\nd",1\n')
    Path("semi.csv").write_text("text;n\nx;1\n")
    Path("bare.csv").write_text("one\ntwo\n")
    Path("t.tsv").write_text("a text\t1\nanother\t2\n")
    Path("t.jsonl").write_text('{"text": "e", "n": 1}\n{"n": [2], "text": "f", "new": null}\n{}\n')
    np.save("tokens.npy", np.array([[97, 98], [99, 100]]))
    np.savez("padded.npz", x=np.array([[97, 98], [99, 0]]), lengths=np.array([2, 1]))
    np.savez("series.npz", x=np.zeros((2, 3, 2), np.float32), y=np.array([0, 1]))
    Path("pictures").mkdir()
    for name, size in (("b", (6, 6)), ("a", (9, 5))):
        Image.fromarray(np.zeros((*size[::-1], 3), np.uint8)).save(f"pictures/{name}.png")
    Path("mixed").mkdir()
    Path("mixed/a.txt").write_text("a")
    Path("mixed/b.png").write_bytes(Path("pictures/b.png").read_bytes())
    with zipfile.ZipFile("pictures.zip", "w") as archive:
        archive.write("pictures/a.png")
    Path("empty.txt").touch()
    return tmp_path


def read(*words: str | Path, task: str = "classify-text", **how: Any) -> list[tuple[str, Any]]:
    """What each row is called, with its cells."""
    found = open_inputs(words, reader(task), Reading(**how))
    return [(row.shown, dict(row.cells)) for row in found.rows]


def names(*words: str | Path, **how: Any) -> list[str]:
    return [shown for shown, _ in read(*words, **how)]


@pytest.mark.parametrize(
    ("words", "how", "expected"),
    [
        (("a film", "what is it?", "A.B. said no"), {}, ["a film", "what is it?", "A.B. said no"]),
        (("x" * 5000,), {}, ["x" * 5000]),
        (("lines.txt",), {}, ["one", "", "two, three"]),
        (("wide.txt",), {}, ["schön", "zwei"]),
        (("lines.txt",), {"whole": True}, ["lines.txt"]),
        (("lines.txt",), {"text": True}, ["lines.txt"]),
        (("gone.csv", "a/b"), {"text": True}, ["gone.csv", "a/b"]),
        (("notes", "end"), {}, ["first", "second", "third", "end"]),
        (("notes",), {"whole": True}, ["a.txt", "b.txt"]),
        (("notes/*.txt",), {}, ["first", "second", "third"]),
        (("t.csv", "semi.csv"), {}, ["a, b", "c\nd", "x"]),
        (("bare.csv",), {"header": "no"}, ["one", "two"]),
        (("t.tsv",), {"text_column": "1", "header": "no"}, ["a text", "another"]),
        (("t.jsonl",), {}, ["e", "f", ""]),
        (("tokens.npy",), {}, ["tokens.npy 1", "tokens.npy 2"]),
        (("-", "b"), {"stdin": lambda: iter(["one\n", "\n", "a.csv"])}, ["one", "", "a.csv", "b"]),
        ((Path("lines.txt"),), {}, ["one", "", "two, three"]),
    ],
)
def test_words_are_files_where_they_are_or_look_like_some(
    words: tuple[str, ...], how: dict[str, Any], expected: list[str], here: Path
) -> None:
    assert names(*words, **how) == expected


def test_rows_of_tables_keep_all_of_their_cells(here: Path) -> None:
    first = {"id": "7", "review": "a, b", "stars": "2"}
    assert read("t.csv") == [("a, b", first), ("c\nd", {"id": "8", "review": "c\nd", "stars": "1"})]
    assert [cells for _, cells in read("t.jsonl")] == [
        {"text": "e", "n": 1},
        {"n": [2], "text": "f", "new": None},
        {},
    ]
    unnamed = {"column_1": "a text", "column_2": "1"}
    assert read("t.tsv", text_column="1", header="no")[0] == ("a text", unnamed)


def test_pictures_and_arrays_go_by_their_names(here: Path) -> None:
    inputs = open_inputs(["pictures", "pictures.zip"], reader("classify-image"), Reading())
    rows = list(inputs.rows)
    assert [row.shown for row in rows] == ["a.png", "b.png", "pictures/a.png"]
    assert [np.asarray(row.value).shape for row in rows] == [(3, 6, 6)] * 3
    assert inputs.notes() == ["2 pictures resized as in training"]
    assert names("pictures/a.png", task="classify-image") == ["pictures/a.png"]
    # as in training, what stands beside pictures is left aside
    Path("mixed/c.png").write_bytes(Path("pictures/a.png").read_bytes())
    assert names("mixed", task="classify-image") == ["b.png", "c.png"]
    Path("mixed/labels.csv").write_text("image,age\nb.png,3\n")
    assert names("mixed", task="classify-image") == ["b.png", "c.png"]
    assert names("series.npz", task="classify-series") == ["series.npz 1", "series.npz 2"]
    padded = open_inputs(["padded.npz"], reader("classify-text"), Reading()).rows
    assert [np.asarray(row.value).tolist() for row in padded] == [[97, 98], [99]]


@pytest.mark.parametrize(
    ("words", "task", "said"),
    [
        (("gone.csv",), "lm", "no file or folder 'gone.csv'.*read with `as_text`"),
        (("https://x.org/y",), "lm", r"https://x.org/y is an address.*`as_text`"),
        (("*.png",), "lm", r"no file matches '\*.png'.*`as_text`"),
        (("gone",), "classify-image", "'gone'.*the model reads pictures .task classify-image"),
        (("gone",), "regress-series", r"the model reads series \(.npy, .npz\)"),
        (("",), "lm", "a text is empty"),
        (("-",), "lm", "stdin is empty"),
        (("empty.txt",), "lm", "'empty.txt' is empty"),
        (("pictures",), "lm", "'pictures' holds pictures, but the model reads texts .task lm"),
        (("t.csv",), "classify-image", "'t.csv' holds tables, but the model reads pictures"),
        (("lines.txt",), "classify-series", "'lines.txt' holds texts, but the model reads series"),
        (("mixed",), "lm", r"'mixed' holds texts \(a.txt\) and pictures \(b.png\)"),
        (("t.csv", "a text"), "lm", "'t.csv' is a table, .*tables by themselves"),
    ],
)
def test_what_cannot_be_read_is_named(
    words: tuple[str, ...], task: str, said: str, here: Path
) -> None:
    with pytest.raises(EveryformerError, match=said) as found:
        read(*words, task=task)
    assert isinstance(found.value, DataError | ConfigError)


@pytest.mark.parametrize(
    ("header", "expected"), [("what,when", "a"), ("what,text", "a"), ("review,text", None)]
)
def test_the_column_of_training_comes_before_the_obvious_one(
    header: str, expected: str | None, here: Path
) -> None:
    Path("odd.csv").write_text(f"{header}\na,1\n")
    one = reader("classify-text")
    one.text_column = "what"
    rows = open_inputs(["odd.csv"], one, Reading()).rows
    if expected is not None:
        assert [row.shown for row in rows] == [expected]
        return
    with pytest.raises(ConfigError, match="2 columns that could be the text"):
        next(rows)


@pytest.mark.parametrize("name", ["long.csv", "long.jsonl", "long.txt"])
def test_long_files_are_read_as_they_are_needed(name: str, here: Path) -> None:
    line = json.dumps({"text": "a"}) if name.endswith("jsonl") else "a"
    head = "text\n" if name.endswith("csv") else ""
    # what is broken far behind is not met before it is reached
    broken, said = {
        "long.csv": (b"a,b\n", "has 2 columns"),
        "long.jsonl": (b"{\n", "is not JSON"),
        "long.txt": (b"\xff\xfe\n", "is not UTF-8"),
    }[name]
    Path(name).write_bytes(head.encode() + f"{line}\n".encode() * 20_000 + broken)
    rows = open_inputs([name], reader("classify-text"), Reading()).rows
    assert len(list(itertools.islice(rows, 5000))) == 5000
    with pytest.raises(DataError, match=said):
        list(rows)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("text,n", ["text", "n"]),
        ("text,", ["text", "column_2"]),
        ("a,a", ["a", "a_2"]),
        ("a_3,a,a", ["a_3", "a", "a_3_"]),
    ],
)
def test_no_column_is_lost_by_its_name(header: str, columns: list[str]) -> None:
    table: Any = SimpleNamespace(width=len(columns), names=tuple(header.split(",")))
    assert _unique(table) == columns
