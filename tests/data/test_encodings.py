"""Encodings: guessed of tables and said, obeyed where they are said, refused where they are two."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from data_files import Load, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.encodings import encoding_of

WORDS = ("schön", "naß", "süß", "blau")
CSV = "text,label\n" + "".join(f"ein {w} Tag {n},{w}\n" for n in range(10) for w in WORDS)
JSONL = "".join(
    json.dumps({"text": f"ein {w} Tag {n}", "label": w}, ensure_ascii=False) + "\n"
    for n in range(10)
    for w in WORDS
)
BYTES = {
    "utf-8": (lambda text: text.encode(), None),
    "utf-8 with its mark": (lambda text: text.encode("utf-8-sig"), None),
    "utf-16-le": (lambda text: b"\xff\xfe" + text.encode("utf-16-le"), "read as utf-16-le, by"),
    "utf-16-be": (lambda text: b"\xfe\xff" + text.encode("utf-16-be"), "read as utf-16-be, by"),
    "windows-1252": (
        lambda text: text.encode("cp1252"),
        r"read as windows-1252 \(guessed; --data.e",
    ),
    "old line ends": (
        lambda text: text.replace("\n", "\r").encode("cp1252"),
        "read as windows-1252",
    ),
}


def texts(data: Any) -> list[str]:
    return [data.tokenizer.decode(data.tokens[a:b]) for a, b in itertools.pairwise(data.bounds)]


@pytest.mark.parametrize("encoding", BYTES)
@pytest.mark.parametrize(("name", "content"), [("a.csv", CSV), ("a.jsonl", JSONL)])
def test_a_table_in_any_encoding_is_the_table_in_utf8(
    encoding: str, name: str, content: str, tmp_path: Path, load: Load
) -> None:
    if name == "a.jsonl" and encoding == "old line ends":
        pytest.skip("JSON lines end in line feeds")
    encode, said = BYTES[encoding]
    data = load(write(tmp_path, {name: encode(content)}) / name)
    plain = load(write(tmp_path, {f"plain/{name}": content}) / "plain" / name)
    assert texts(data) == texts(plain)
    assert data.classes == plain.classes == tuple(sorted(WORDS))
    assert data.fingerprint == plain.fingerprint
    if said is None:
        assert "read as" not in data.split
    else:
        assert re.search(said, data.split)


def test_what_is_said_goes_before_what_would_be_guessed(tmp_path: Path, load: Load) -> None:
    content = CSV.replace("süß", "żur")
    path = write(tmp_path, {"a.csv": content.encode("cp1250")}) / "a.csv"
    said = load(path, encoding="cp1250")
    assert said.classes == tuple(sorted({*WORDS} - {"süß"} | {"żur"}))
    assert "read as" not in said.split
    guessed = load(path)
    assert "¿ur" in guessed.classes
    assert "read as windows-1252 (guessed; --data.encoding says another)" in guessed.split


def test_bytes_without_a_letter_in_windows_1252_are_latin_1() -> None:
    assert guessed_encoding([b"a\n", b"\xe9\x81\n"], "x") == "latin-1"
    assert guessed_encoding([b"a\n", b"\xe9\x80\n"], "x") == "windows-1252"
    assert guessed_encoding([b"a\n", "é€\n".encode()], "x") == "utf-8"


@pytest.mark.parametrize(
    ("name", "beginning", "codec"),
    [
        ("UTF-8", b"\xef\xbb\xbfa", "utf-8"),
        ("utf-8-sig", b"a", "utf-8"),
        ("utf-16", b"\xfe\xff\0a", "utf-16-be"),
        ("utf-16", b"\xff\xfea\0", "utf-16-le"),
        ("utf-16", b"a\0", "utf-16-le"),
        ("windows-1252", b"\xff\xfe", "cp1252"),
    ],
)
def test_a_mark_tells_the_order_of_bytes_and_nothing_else(
    name: str, beginning: bytes, codec: str
) -> None:
    assert encoding_of(beginning, name) == codec


MIXED = CSV.encode() + "noch ein süß,süß\n".encode("cp1252")


def test_two_encodings_are_refused_with_the_first_line_of_either(
    tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.csv": b"\n" + MIXED}) / "a.csv"
    with pytest.raises(DataError, match=r"two encodings, line 3 in UTF-8 and line 43 not; .*say"):
        load(path)
    # any byte is a letter of latin-1
    assert len(load(path, encoding="latin-1").labels) == 41


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CSV.encode("utf-16-le"), "line 1 has NUL bytes.*--data.encoding utf-16-le"),
        (b"text,label\nsch\xf6n,a\n\x00\x01,b\n", "line 3 has NUL bytes"),
    ],
)
def test_what_is_no_text_is_not_guessed_to_be_one(
    content: bytes, said: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.csv": content}) / "a.csv"
    with pytest.raises(DataError, match=said):
        load(path)


def test_utf16_without_its_mark_is_read_where_it_is_said(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.csv": CSV.encode("utf-16-be")}) / "a.csv"
    assert load(path, encoding="utf-16-be").classes == tuple(sorted(WORDS))


@pytest.mark.parametrize(
    ("name", "said"),
    [("latn1", "unknown encoding 'latn1'; did you mean .*latin1"), ("base64", "unknown encoding")],
)
def test_an_unknown_encoding_is_refused_with_its_neighbours(
    name: str, said: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, {"a.csv": CSV}) / "a.csv", encoding=name)


def test_a_table_that_is_not_what_was_said_is_refused_with_its_line(
    tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.csv": CSV.encode("cp1252")}) / "a.csv"
    with pytest.raises(DataError, match="line 2 is not UTF-8 text"):
        load(path, encoding="utf-8")


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_plain_text_is_decoded_where_its_encoding_is_said(
    tokenizer: str, tmp_path: Path, load: Load
) -> None:
    content = "".join(f"ein schöner Tag {n}\r\n" for n in range(40))
    options: dict[str, Any] = {"length": 16, "tokenizer": tokenizer}
    old = write(tmp_path, {"a.txt": content.encode("cp1252"), "b.txt": content}) / "a.txt"
    said, plain = load(old, encoding="cp1252", **options), load(tmp_path / "b.txt", **options)
    assert said.tokenizer.decode(said.train) == plain.tokenizer.decode(plain.train)
    assert said.fingerprint == plain.fingerprint
    assert said.bytes_per_token == plain.bytes_per_token
    if tokenizer == "bytes":
        kept = load(old, **options)
        assert bytes(kept.train).startswith(content.encode("cp1252")[:100])
    else:
        with pytest.raises(DataError, match=r"say what it is with --data\.encoding"):
            load(old, **options)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_plain_text_in_utf16_is_read_by_its_mark(encoding: str, tmp_path: Path, load: Load) -> None:
    content = "".join(f"ein schöner Tag {n}\r\n" for n in range(40))
    marked = BYTES[encoding][0](content)
    folder = write(tmp_path, {"a.txt": marked, "b.txt": content})
    options: dict[str, Any] = {"length": 16, "tokenizer": "chars"}
    read, plain = load(folder / "a.txt", **options), load(folder / "b.txt", **options)
    assert read.fingerprint == plain.fingerprint
    assert read.bytes_per_token == plain.bytes_per_token
    assert load(folder / "a.txt", encoding="utf-16", **options).fingerprint == plain.fingerprint
    with pytest.raises(DataError, match=r"UTF-16 by its mark, .* say --data.encoding utf-16, or"):
        load(folder / "a.txt", length=16, tokenizer="bytes")
    # one text among others, and lines of parallel text
    both = load(write(tmp_path / "both", {"a.txt": marked, "b.txt": content}), **options)
    same = load(write(tmp_path / "same", {"a.txt": content, "b.txt": content}), **options)
    assert both.fingerprint == same.fingerprint
    pairs = load(write(tmp_path / "pairs", {"t.de": marked, "t.en": content}))
    assert pairs.held_out()[1] == [f"ein schöner Tag {n}" for n in range(36, 40)]


def test_parallel_files_are_read_as_is_said(tmp_path: Path, load: Load) -> None:
    lines = "".join(f"ein süßer Tag {n}\n" for n in range(30))
    files = {"t.de": lines.encode("cp1252"), "t.en": lines.encode("cp1252")}
    folder = write(tmp_path / "pairs", files)
    with pytest.raises(DataError, match=r"line 1 is not UTF-8.*--data\.encoding"):
        load(folder)
    data = load(folder, encoding="cp1252")
    assert data.held_out()[1] == [f"ein süßer Tag {n}" for n in (27, 28, 29)]


def test_each_of_several_tables_is_read_as_it_is(tmp_path: Path, load: Load) -> None:
    files = {"x/a.csv": CSV, "x/b.csv": CSV.encode("cp1252"), "x/c.csv": CSV.encode("cp1252")}
    data = load(write(tmp_path, files) / "x")
    assert texts(data)[:40] == texts(data)[40:80] == texts(data)[80:]
    assert "2 of 3 tables read as windows-1252 (guessed" in data.split
