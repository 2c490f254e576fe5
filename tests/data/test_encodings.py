"""Encodings: UTF-8, UTF-16 by its mark, or what is said; never guessed."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from data_files import Load, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.sources import encoding_of

WORDS = ("schön", "naß", "süß", "blau")
CSV = "text,label\n" + "".join(f"ein {w} Tag {n},{w}\n" for n in range(10) for w in WORDS)
JSONL = "".join(
    json.dumps({"text": f"ein {w} Tag {n}", "label": w}, ensure_ascii=False) + "\n"
    for n in range(10)
    for w in WORDS
)
BYTES = {
    "utf-8": lambda text: text.encode(),
    "utf-8 with its mark": lambda text: text.encode("utf-8-sig"),
    "utf-16-le": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "utf-16-be": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "windows-1252": lambda text: text.encode("cp1252"),
    "old line ends": lambda text: text.replace("\n", "\r").encode("utf-8"),
}


def texts(data: Any) -> list[str]:
    return [data.tokenizer.decode(data.tokens[a:b]) for a, b in itertools.pairwise(data.bounds)]


@pytest.mark.parametrize(
    ("name", "content", "encoding"),
    [
        *(("a.csv", CSV, encoding) for encoding in BYTES),
        # JSON lines end in line feeds
        *(("a.jsonl", JSONL, encoding) for encoding in BYTES if encoding != "old line ends"),
    ],
)
def test_a_table_in_any_encoding_is_the_table_in_utf8(
    encoding: str, name: str, content: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {name: BYTES[encoding](content)}) / name
    said = {"encoding": "windows-1252"} if encoding == "windows-1252" else {}
    data = load(path, **said)
    plain = load(write(tmp_path, {f"plain/{name}": content}) / "plain" / name)
    assert texts(data) == texts(plain)
    assert data.classes == plain.classes == tuple(sorted(WORDS))
    assert data.fingerprint == plain.fingerprint


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_no_encoding_is_guessed(name: str, tmp_path: Path, load: Load) -> None:
    """The bytes are letters in many encodings; which is meant is asked, with the line."""
    content = CSV if name == "a.csv" else JSONL
    path = write(tmp_path, {name: content.replace("süß", "żur").encode("cp1250")}) / name
    line = 2 if name == "a.csv" else 1
    with pytest.raises(DataError, match=rf"line {line} is not UTF-8 .*`data.encoding` \(windows"):
        load(path)
    assert "żur" in load(path, encoding="cp1250").classes
    assert "¿ur" in load(path, encoding="windows-1252").classes


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


def test_utf16_without_its_mark_is_read_where_it_is_said(tmp_path: Path, load: Load) -> None:
    content = CSV.translate(str.maketrans("öüß", "oub")).encode("utf-16-le")
    with pytest.raises(DataError, match=r"has NUL bytes.*`data.encoding=utf-16-le`"):
        load(write(tmp_path, {"a.csv": content}) / "a.csv")
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
        with pytest.raises(DataError, match=r"say what it is with `data.encoding`"):
            load(old, **options)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_plain_text_in_utf16_is_read_by_its_mark(encoding: str, tmp_path: Path, load: Load) -> None:
    content = "".join(f"ein schöner Tag {n}\r\n" for n in range(40))
    marked = BYTES[encoding](content)
    folder = write(tmp_path, {"a.txt": marked, "b.txt": content})
    options: dict[str, Any] = {"length": 16, "tokenizer": "chars"}
    read, plain = load(folder / "a.txt", **options), load(folder / "b.txt", **options)
    assert read.fingerprint == plain.fingerprint
    assert read.bytes_per_token == plain.bytes_per_token
    assert load(folder / "a.txt", encoding="utf-16", **options).fingerprint == plain.fingerprint
    with pytest.raises(DataError, match=r"UTF-16 by its mark, .* say `data.encoding=utf-16`, or"):
        load(folder / "a.txt", length=16, tokenizer="bytes")
    # one text among others, and lines of parallel text
    both = load(write(tmp_path / "both", {"a.txt": marked, "b.txt": content}), **options)
    same = load(write(tmp_path / "same", {"a.txt": content, "b.txt": content}), **options)
    assert both.fingerprint == same.fingerprint
    pairs = load(write(tmp_path / "pairs", {"t.de": marked, "t.en": content}))
    assert pairs.held_out_pairs()[1] == [f"ein schöner Tag {n}" for n in range(36, 40)]


def test_parallel_files_are_read_as_is_said(tmp_path: Path, load: Load) -> None:
    lines = "".join(f"ein süßer Tag {n}\n" for n in range(30))
    files = {"t.de": lines.encode("cp1252"), "t.en": lines.encode("cp1252")}
    folder = write(tmp_path / "pairs", files)
    with pytest.raises(DataError, match=r"line 1 is not UTF-8.*`data\.encoding`"):
        load(folder)
    data = load(folder, encoding="cp1252")
    assert data.held_out_pairs()[1] == [f"ein süßer Tag {n}" for n in (27, 28, 29)]
