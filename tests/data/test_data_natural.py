"""What a table is read for: labelled texts, pairs, documents; what is asked, what options mean."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import Load, delimited, write

from everyformer.core.errors import ConfigError, DataError, EveryformerError, MissingExtraError

LABELLED = [("text", "label"), *((f"some text {n}", "ab"[n % 2]) for n in range(8))]
PAIRS = [(f"the {n} runs", f"nun läuft {n} sehr") for n in ("dog", "cat", "fox", "hen")]
TWO = delimited(PAIRS, "\t")
JSON = "".join(
    json.dumps({"n": n, "text": text, "label": label}) + "\n"
    for n, (text, label) in enumerate(LABELLED[1:])
)
TRANSLATOR, READER = ("seq2seq",), ("mlm", "classify-text")
BOTH = (*READER, *TRANSLATOR)


@pytest.mark.parametrize(
    ("name", "content", "able", "task"),
    [
        ("a.jsonl", '{"left": "a b", "right": "c d"}\n' * 4, TRANSLATOR, "seq2seq"),
        ("a.csv", delimited([("source", "target"), *PAIRS]), BOTH, "seq2seq"),
        ("a.csv", delimited(LABELLED), BOTH, "classify-text"),
        (
            "a.csv",
            delimited([("source", "text", "target"), *[("web", "a b", "x"), ("tv", "c", "y")] * 4]),
            READER,
            "classify-text",
        ),
        ("a.csv", delimited(LABELLED), ("lm",), "lm"),
        ("a.tsv", TWO, ("lm",), "lm"),
        ("a.csv", "text\n" + "some\n" * 40, READER, "mlm"),
        ("a.jsonl", JSON, READER, "classify-text"),
        ("a.jsonl", JSON.replace("label", "mood").replace('"n"', '"m"'), ("lm",), "lm"),
        ("a.jsonl", "".join(f'{{"n": {n}, "text": "t"}}\n' for n in range(99)), READER, "mlm"),
    ],
)
def test_a_table_is_read_for_what_it_shows(
    name: str, content: str, able: Any, task: str, tmp_path: Path, load: Load
) -> None:
    length = 32 if task == "seq2seq" else 4
    assert load(write(tmp_path, {name: content}) / name, able=able, length=length).task == task


@pytest.mark.parametrize("able", [("lm",), ("lm", "decision"), READER, ("lm", *READER)])
def test_a_label_that_is_chosen_is_what_is_learned_whoever_can(
    able: Any, tmp_path: Path, load: Load
) -> None:
    source = write(tmp_path, {"a.csv": delimited(LABELLED)}) / "a.csv"
    data = load(source, able=able, length=4, label_column="label")
    assert (data.task, data.classes) == ("classify-text", ("a", "b"))


ASKED = "none is called like .*`data.text_column` N.*pairs to translate take `task=seq2seq`"


@pytest.mark.parametrize(
    ("name", "content", "able", "message"),
    [
        ("a.tsv", TWO, READER, "say `data.header=yes`, or no where it is a row"),
        ("a.csv", delimited(PAIRS), TRANSLATOR, "say `data.header=yes`, or no where it is a row"),
        (
            "a.jsonl",
            '{"said": "a b", "mood": "x"}\n{"said": "c", "mood": "y"}\n' * 15,
            READER,
            "none is called like a text",
        ),
        ("a.jsonl", '{"l": "a b", "r": "c d"}\n', BOTH, ASKED),
        ("a.csv", delimited(LABELLED), TRANSLATOR, "only translates.*`data.source_column`"),
        ("a.csv", delimited([("x", "y", "z"), ("1", "a b", "c")]), READER, "called like a label"),
    ],
)
def test_what_a_table_does_not_show_is_asked(
    name: str, content: str, able: Any, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(EveryformerError, match=message):
        load(write(tmp_path, {name: content}) / name, able=able)


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_a_table_without_a_header_is_read_as_is_said(
    delimiter: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.csv": delimited(PAIRS, delimiter)}) / "a.csv"
    with pytest.raises(ConfigError, match=f"2 columns and no header.*{ASKED}"):
        load(path, able=BOTH, header="no")
    pairs = load(path, able=TRANSLATOR, header="no", length=32)
    assert (pairs.task, pairs_of(pairs)) == ("seq2seq", PAIRS)
    assert pairs_of(load(path, able=TRANSLATOR, header="yes", length=32)) == PAIRS[1:]


def pairs_of(data: Any) -> list[tuple[str, str]]:
    ends = data.bounds
    texts = [data.tokenizer.decode(data.tokens[a : b - 1]) for a, b in pairwise(ends)]
    return list(zip(texts[::2], texts[1::2], strict=True))


@pytest.mark.parametrize(
    ("name", "content", "options", "languages"),
    [
        ("a.csv", delimited([("Left", "Right"), *PAIRS]), {"target_column": "right"}, "left-right"),
        (
            "a.csv",
            delimited([("n", "Right", "Left"), *((7, b, a) for a, b in PAIRS)]),
            {"source_column": "left", "target_column": "right"},
            "left-right",
        ),
        (
            "a.jsonl",
            "".join(json.dumps({"translation": {"x": b, "y": a}}) + "\n" for a, b in PAIRS),
            {"source_column": "y"},
            "y-x",
        ),
    ],
)
def test_columns_of_pairs_are_chosen(
    name: str, content: str, options: Any, languages: str, tmp_path: Path, load: Load
) -> None:
    data = load(write(tmp_path, {name: content}) / name, **options)
    assert pairs_of(data) == PAIRS
    assert "-".join(data.languages) == languages
    assert f"from {languages.replace('-', ' to ')}" in data.split


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_column": "1", "target_column": "1"}, "source and target are both column 1"),
        (
            {"source_column": "1", "task": "lm"},
            "`data.source_column` has no meaning for the task lm",
        ),
    ],
)
def test_columns_that_contradict_the_task_are_refused(
    options: Any, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, {"a.tsv": TWO}) / "a.tsv", header="no", **options)


@pytest.mark.parametrize(("name", "content"), [("a.txt", "text"), ("a.jsonl", JSON)])
def test_a_header_is_refused_where_no_line_can_be_one(
    name: str, content: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(ConfigError, match=r"`data\.header` has no meaning"):
        load(write(tmp_path, {name: content}) / name, header="yes")


# documents


@pytest.mark.parametrize("task", ["lm", "mlm"])
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_a_column_of_any_table_is_the_same_documents(
    task: str, tokenizer: str, tmp_path: Path, load: Load
) -> None:
    rows = [("n", "body"), *((n, f"a, long text\nof {n}") for n in range(30))]
    content = {
        "a.csv": delimited(rows),
        "b.tsv": delimited(rows, "\t"),
        "c.jsonl": "".join(json.dumps({"body": text, "n": n}) + "\n" for n, text in rows[1:]),
    }
    write(tmp_path, content)
    options = {"length": 16, "tokenizer": tokenizer, "text_column": "body"}
    result = [load(tmp_path / name, task, **options) for name in content]
    assert len({data.fingerprint for data in result}) == 1
    assert all("30 documents" in data.split and "text from 'body'" in data.split for data in result)


def test_a_table_that_is_read_as_plain_text_says_so(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path, {"a.csv": delimited(LABELLED)}) / "a.csv", "lm", length=4)
    assert "plain text, delimiters and all (one column: --data.text-column)" in data.split
    assert data.tokenizer.decode(data.train).startswith("text,label\nsome text 0,a\n")


NO = (("no", "1"), ("no", "2"))


def test_other_columns_are_other_data_in_the_same_cache(tmp_path: Path, load: Load) -> None:
    rows = [("one", "two"), *((f"first text {n}", f"zweiter Text {n}") for n in range(20))]
    path = write(tmp_path, {"a.csv": delimited(rows)}) / "a.csv"
    for task, options in (
        (
            "lm",
            ({"text_column": "one"}, {"text_column": "two"}, {"text_column": "1", "header": "no"}),
        ),
        ("seq2seq", ({"header": h, "source_column": c} for h, c in (("yes", "1"), *NO))),
    ):
        prints = [
            load(path, task, length=64 if task == "seq2seq" else 12, **each).fingerprint
            for each in options
        ]
        assert len(set(prints)) == 3
    path = write(tmp_path, {"b.csv": delimited([("x", "y", "z"), *["ijk", "jki"] * 3])}) / "b.csv"
    labels = [{"text_column": "x", "label_column": c} for c in "yz"]
    assert len({load(path, "classify-text", **each).fingerprint for each in labels}) == 2
    path = write(tmp_path, {"c.csv": "a;b,c\n" + "d;e,f\ng;h,i\nd;e,i\n" * 3}) / "c.csv"
    given = {"text_column": "1", "label_column": "2", "header": "yes"}
    prints = [load(path, separator=s, **given).fingerprint for s in ("comma", "semicolon")]
    assert prints[0] != prints[1]


# Parquet


def test_parquet_without_its_package_names_the_extra(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path, {"a.parquet": b"PAR1"}) / "a.parquet"
    with pytest.raises(MissingExtraError, match=r"reading Parquet .*pyarrow.*everyformer\[data\]"):
        load(path)


@pytest.fixture
def parquet(tmp_path: Path) -> Any:
    """A function that writes columns into a.parquet."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    def make(said: str = "{}", **columns: Any) -> Path:
        table = pyarrow.table(columns).replace_schema_metadata({"huggingface": said})
        write_table(table, tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    return make


def test_parquet_is_the_same_data_as_csv(parquet: Any, tmp_path: Path, load: Load) -> None:
    texts, labels = zip(*LABELLED[1:], strict=True)
    path = parquet(n=range(8), text=texts, label=labels)
    csv = write(tmp_path, {"a.csv": delimited(LABELLED)}) / "a.csv"
    assert load(path).fingerprint == load(csv).fingerprint
    options: dict[str, Any] = {"length": 4, "text_column": "text"}
    assert load(path, "lm", **options).fingerprint == load(csv, "lm", **options).fingerprint
    first, second = zip(*PAIRS, strict=True)
    data = load(parquet(fr=first, de=second), able=BOTH)
    assert (data.languages, pairs_of(data)) == (("fr", "de"), PAIRS)


def test_labels_of_parquet_are_whole_numbers_or_missing(parquet: Any, load: Load) -> None:
    texts = [f"text {n}" for n in range(6)]
    assert load(parquet(text=texts, label=[1.0, 2.0] * 3)).classes == ("1", "2")
    with pytest.raises(DataError, match="2 texts without a label: row 2, row 5; fill"):
        load(parquet(text=texts, label=[1.0, np.nan, 2.0, 1.0, None, 2.0]))
    with pytest.raises(DataError, match="row 1: 'text' holds 5, which is no text"):
        load(parquet(text=[5, 6, 7], label=["a"] * 3), "classify-text")


KEPT = {"names": ["no", "yes", "maybe"], "_type": "ClassLabel"}
SAID = {"text": {"dtype": "string", "_type": "Value"}, "label": KEPT, "pair": [KEPT]}


def test_classes_of_datasets_are_called_as_their_file_says(parquet: Any, load: Load) -> None:
    """As datasets 5.2 writes its features beside the numbers of a ClassLabel."""
    said = json.dumps({"info": {"features": SAID}})
    texts = [f"text {n}" for n in range(6)]
    path = parquet(said, text=texts, label=[0, 2, 0, 2, 2, 0])
    rows = load(path, "classify-text")
    assert rows.classes == ("maybe", "no")
    plain = [("text", "label"), *zip(texts, ["no", "maybe"] * 2 + ["maybe", "no"], strict=True)]
    csv = write(path.parent / "plain", {"a.csv": delimited(plain)}) / "a.csv"
    assert rows.fingerprint == load(csv, "classify-text").fingerprint
    with pytest.raises(DataError, match="2 texts without a label: row 2, row 5; fill"):
        load(parquet(said, text=texts, label=[0, -1, 0, 1, -1, 1]))
    for forged in (
        "[",
        "[]",
        json.dumps({"info": {"features": {"label": {"_type": "ClassLabel"}}}}),
    ):
        with pytest.raises(DataError, match="keeps names of classes in an unknown form"):
            load(parquet(forged, text=texts, label=[0, 1] * 3))


@pytest.mark.parametrize("cell", [b"\x89PNG" * 999, {"bytes": b"\x89PNG" * 999, "path": None}])
def test_pictures_in_parquet_are_refused_in_one_sentence(
    parquet: Any, load: Load, cell: Any
) -> None:
    path = parquet(image=[cell] * 6, label=["a", "b"] * 3)
    with pytest.raises(DataError, match="'image' holds the bytes of a file") as caught:
        load(path, "classify-text", text_column="image")
    assert len(str(caught.value)) < 400
    with pytest.raises(DataError, match=r"'image' holds .*…, which is no label"):
        load(path, "classify-text", text_column="label", label_column="image")
    with pytest.raises(DataError, match="holds no pictures, which the task classify-image needs"):
        load(path, "classify-image")


def test_what_is_no_parquet_is_refused(tmp_path: Path, load: Load) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"a.parquet' is not readable as Parquet"):
        load(write(tmp_path, {"a.parquet": "text,label\na,b\n"}) / "a.parquet")
