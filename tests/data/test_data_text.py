"""Corpora: where they are cut, what a window holds, what is refused."""

import errno
import json
import os
import resource
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import Files, Load, corpus, pack, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data import sources
from everyformer.data.sources import Source
from everyformer.data.text import TextDataset

LETTERS = "".join(chr(97 + i % 26) for i in range(1000))


def held_out_text(data: Any) -> str:
    """The validation part, put together again from the scored targets."""
    result = [int(data.validation[0])]
    for batch in data.validation_batches(3):
        result += batch.targets[batch.targets >= 0].tolist()
    return data.tokenizer.decode(result)


def test_targets_are_the_inputs_one_further_on(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path, {"a.txt": LETTERS}) / "a.txt", length=16)
    batch = data.train_batch(0, 5, 0)
    assert batch.inputs.shape == batch.targets.shape == (5, 16)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.padding_mask is None
    assert batch.tokens == batch.scored == 80


@pytest.mark.parametrize("length", [2, 9, 16, 99])
def test_every_validation_target_counts_exactly_once(
    length: int, tmp_path: Path, load: Load
) -> None:
    data = load(write(tmp_path, {"a.txt": LETTERS}) / "a.txt", length=length)
    assert held_out_text(data) == LETTERS[900:]
    assert sum(b.scored for b in data.validation_batches(4)) == 99
    assert all(b.inputs.shape[1] == length for b in data.validation_batches(4))


def test_a_limit_takes_sequences_at_equal_distances(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path, {"a.txt": LETTERS}) / "a.txt", length=9, validation=0.5)
    every = torch.cat([b.inputs for b in data.validation_batches(8)])
    some = torch.cat([b.inputs for b in data.validation_batches(8, limit=5)])
    assert len(every) == 56
    assert torch.equal(some, every[[5, 16, 28, 39, 50]])
    with pytest.raises(ConfigError, match="at least 1"):
        next(data.validation_batches(8, limit=0))


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:270"])
def test_all_tokenizers_hold_out_the_same_text_cut_between_characters(
    tokenizer: str, tmp_path: Path, load: Load
) -> None:
    text = "naïve façade, 東京 и Москва\n" * 61  # 70% of its bytes end inside a character
    data = load(
        write(tmp_path, {"a.txt": text}) / "a.txt", length=8, tokenizer=tokenizer, validation=0.3
    )
    held = held_out_text(data)
    train = data.tokenizer.decode(data.train.tolist())
    assert train + held == text
    assert "\ufffd" not in train + held
    assert data.bytes_per_token == len(held.encode()) / len(data.validation)


def test_documents_are_joined_in_order_and_cut_where_one_begins(tmp_path: Path, load: Load) -> None:
    files = {f"b/{n}.txt": f"document {n} " * 4 for n in range(9)} | {"a.txt": "first " * 8}
    data = load(write(tmp_path / "books", files), length=8, validation=0.2)
    texts = data.tokenizer.decode(data.train.tolist()).split("\0")
    assert texts[0] == files["a.txt"]
    assert texts[-1] == ""
    assert held_out_text(data).startswith("document 7")
    assert "10 documents" in data.split
    same = load(pack(tmp_path / "books.zip", files), length=8, validation=0.2)
    assert same.fingerprint == data.fingerprint


@pytest.mark.parametrize("root", ["", "corpus/"])
def test_folders_and_files_of_a_split_are_used_and_named(
    root: str, tmp_path: Path, load: Load
) -> None:
    parts = {"train/a.txt": "a", "train/b.txt": "b", "valid/c.txt": "c", "test/d.txt": "d"}
    files = {f"{root}{name}": letter * 50 for name, letter in parts.items()}
    data = load(pack(tmp_path / "x.zip", files | {f"{root}README.md": "about"}), length=8)
    assert held_out_text(data) == "c" * 50 + "\0"
    assert "train/ and valid/ (test/ left unread)" in data.split
    files = {f"{root}wiki.train.tokens": "a" * 50, f"{root}wiki.test.tokens": "b" * 50}
    data = load(write(tmp_path / "wiki", files), length=8)
    assert held_out_text(data) == "b" * 50
    assert "train files and test files" in data.split
    files = {f"{root}valid/c.txt": "c" * 99, f"{root}test/d.txt": "d" * 99}
    assert "source's own" not in load(pack(tmp_path / "y.zip", files), length=8).split


def test_json_lines_are_documents(tmp_path: Path, load: Load) -> None:
    lines = "\n".join(json.dumps({"text": f"line {n} é", "id": n}) for n in range(40))
    data = load(write(tmp_path, {"a.jsonl": lines}) / "a.jsonl", length=8, tokenizer="chars")
    assert data.task == "lm"
    assert held_out_text(data) == "".join(f"line {n} é\0" for n in range(36, 40))


def test_a_glob_picks_files(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"x/a.txt": "a" * 50, "x/b.txt": "b" * 50, "x/c.png": b"\0\0"})
    data = load(f"{tmp_path}/x/*.txt", length=8, validation=0.3)
    assert data.name == "x"
    assert len(data.train) + len(data.validation) == 102


def test_characters_unseen_in_training_are_counted_not_fatal(tmp_path: Path, load: Load) -> None:
    data = load(
        write(tmp_path, {"a.txt": LETTERS[:900] + "é" * 50}) / "a.txt", length=8, tokenizer="chars"
    )
    assert "50 of them characters that training never has" in data.split
    assert int((data.validation == 0).sum()) == 50


def test_a_run_reads_other_text_with_its_own_tokenizer(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"a.txt": LETTERS, "b.txt": "zyx" * 20})
    run = load(tmp_path / "a.txt", length=8, tokenizer="chars")
    other = load(tmp_path / "b.txt", length=8, validation=1.0, reader=run.tokenizer)
    assert other.tokenizer == run.tokenizer
    assert held_out_text(other) == "zyx" * 20
    with pytest.raises(DataError, match="held out"):
        other.train_batch(0, 1, 0)
    with pytest.raises(ConfigError, match="learn the tokenizer"):
        load(tmp_path / "b.txt", length=8, validation=1.0, tokenizer="chars")


def test_content_and_tokenizer_make_the_fingerprint(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"a.txt": LETTERS, "b.txt": LETTERS, "c.txt": LETTERS[::-1]})
    a, b, c = (load(tmp_path / f"{n}.txt", length=8).fingerprint for n in "abc")
    assert a == b != c
    assert load(tmp_path / "a.txt", length=8, tokenizer="chars").fingerprint != a
    assert a == load(tmp_path / "a.txt", length=16).fingerprint


@pytest.mark.parametrize(
    ("files", "given", "options", "message"),
    [
        ({}, "none.txt", {}, "no file or folder"),
        ({}, "*.txt", {}, "no file matches"),
        ({"a.txt": ""}, "a.txt", {}, "a.txt' is empty"),
        ({"x/a.txt": "", "x/b.txt": ""}, "x", {}, "every text .* is empty"),
        ({"a.txt": "too short"}, "a.txt", {}, "too short.*`data.length`"),
        ({"a.txt": b"ab\0cd" * 99}, "a.txt", {}, r"a\.txt' looks binary.*\.bin"),
        ({"a.txt": b"\xff" * 999}, "a.txt", {"tokenizer": "chars"}, "not UTF-8.*iconv"),
        ({"a.bin": LETTERS}, "a.bin", {"tokenizer": "chars"}, "raw bytes"),
        ({"a.jsonl": '{"text": "a"}\n{]'}, "a.jsonl", {}, "line 2 is not JSON"),
        ({"a.jsonl": '{"text": "\\u0000"}'}, "a.jsonl", {}, "line 1.*U\\+0000"),
        ({"a.jsonl": '{"text": ""}\n' * 900}, "a.jsonl", {}, "every text .* is empty; give some"),
    ],
)
def test_bad_text_is_refused_by_name(
    files: Files, given: str, options: dict[str, Any], message: str, tmp_path: Path, load: Load
) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError, match=message):
        load(tmp_path / given, options.pop("task", None), length=64, **options)
    assert not list(tmp_path.glob("cache/*.tmp"))


def test_raw_bytes_pass_when_the_name_says_so(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path, {"dna.bin": bytes(range(256)) * 4}) / "dna.bin", length=16)
    assert int(data.train[:].max()) == 255


def test_links_are_followed_and_loops_and_pipes_refused(tmp_path: Path, load: Load) -> None:
    write(tmp_path, {"y/a.txt": LETTERS, "x/a.txt": LETTERS})
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "there").symlink_to(tmp_path / "y")
    assert len(load(tmp_path / "z", length=8).train) == 900
    (tmp_path / "x" / "again").symlink_to(tmp_path / "x")
    (tmp_path / "self").symlink_to("self")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("x", "again' is a link to a folder that contains it"),
        ("self", "leads nowhere"),
        ("pipe", "neither a file nor a folder"),
    ):
        with pytest.raises(DataError, match=said):
            load(tmp_path / name)


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"a.txt": LETTERS}) / "a.txt"

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Source, "stream", refuse)  # chmod does not stop the superuser
    with pytest.raises(DataError, match=r"a\.txt' may not be read.*chmod"):
        load(path, length=8)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.txt": LETTERS * 20}) / "a.txt"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match=r"cannot write the data cache.*`data\.cache`"):
            load(path, length=8, tokenizer="chars")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list((tmp_path / "cache").iterdir()) == []


def test_tiny_shakespeare_is_cut_as_everywhere(load: Load) -> None:
    data = load(corpus("text/tinyshakespeare.txt"))
    assert isinstance(data, TextDataset)
    assert (len(data.train), len(data.validation)) == (1003854, 111540)


def test_whole_books_are_held_out_by_their_own_split(load: Load) -> None:
    data = load(corpus("text/books.zip"), length=1024)
    assert "train/ and valid/ (test/ left unread)" in data.split
    assert (len(data.train), len(data.validation)) == (15419737, 1381803)
    assert int((data.train == 0).sum()) == 33


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
@pytest.mark.parametrize("content", [b"", b"z" * 500, b"z" * 1000])
def test_a_file_cut_short_or_edited_under_a_run_changes_no_batch(
    content: bytes, tokenizer: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.txt": LETTERS}) / "a.txt"
    data = load(path, length=16, tokenizer=tokenizer)
    before = [data.train_batch(step, 5, 0).inputs for step in range(3)]
    path.write_bytes(content)
    assert all(torch.equal(data.train_batch(s, 5, 0).inputs, b) for s, b in enumerate(before))
    assert held_out_text(data) == LETTERS[900:]
    path.unlink()
    assert held_out_text(data) == LETTERS[900:]


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"a.txt": LETTERS}) / "a.txt"
    read = Source.chunks

    def chunks(source: Source, entry: Any) -> Any:
        yield from read(source, entry)
        path.write_bytes(b"shorter")

    monkeypatch.setattr(Source, "chunks", chunks)
    with pytest.raises(DataError, match="changed while it was read"):
        load(path, length=16)


# a zip can do no harm: no path leads out of it, and none grows without bound

TEXT = "some words of text " * 60


@pytest.mark.parametrize(
    "name", ["../a.txt", "/etc/a.txt", "x/../../a.txt", "..\\a.txt", "C:\\a.txt"]
)
def test_a_path_out_of_the_zip_is_refused(name: str, tmp_path: Path, load: Load) -> None:
    with pytest.raises(DataError, match="a path outside itself"):
        load(pack(tmp_path / "x.zip", {"ok.txt": TEXT, name: TEXT}))


def test_a_zip_that_grows_too_much_is_refused(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pack(tmp_path / "x.zip", {"a.txt": "a" * 1_000_000})
    monkeypatch.setattr(sources, "SMALL_ZIP", 100_000)
    with pytest.raises(DataError, match=r"would grow from .* to 1,000,000 bytes"):
        load(source)
    monkeypatch.setattr(sources, "HIGHEST_RATIO", 10_000)
    assert len(load(source).train) == 900_000
    monkeypatch.setattr(sources, "LARGEST_ZIP", 999_999)
    with pytest.raises(DataError, match="would grow"):
        load(source)


SIZE, LESS = len(TEXT).to_bytes(4, "little"), (600).to_bytes(4, "little")
DAMAGES: dict[str, Any] = {
    "hides its real size": lambda raw: raw.replace(SIZE, LESS),
    **{f"cut at {n}": lambda raw, n=n: raw[: n - 100] for n in (10, 60, 90)},
    "encrypted": lambda raw: flagged(flagged(raw, b"PK\x03\x04", 6), b"PK\x01\x02", 8),
    "a flipped bit": lambda raw: raw[:45] + bytes([raw[45] ^ 0xFF]) + raw[46:],
}


def flagged(raw: bytes, magic: bytes, flags: int) -> bytes:
    at = raw.index(magic) + flags
    return raw[:at] + bytes([raw[at] | 1]) + raw[at + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_zip_is_refused(damage: str, tmp_path: Path, load: Load) -> None:
    path = pack(tmp_path / "x.zip", {"a.txt": TEXT})
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    where = r"x\.zip'" if "cut" in damage else r"'a\.txt' in .*x\.zip'"
    with pytest.raises(DataError, match=f"{where} cannot be unpacked"):
        load(path, length=8)


def test_litter_and_links_inside_are_passed_over(tmp_path: Path, load: Load) -> None:
    path = pack(tmp_path / "x.zip", {"a.txt": TEXT, "__MACOSX/._a.txt": b"\0", ".DS_Store": b"\0"})
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    data = load(path, length=8)
    assert data.tokenizer.decode(data.train.tolist()) in TEXT
    assert len(data.train) + len(data.validation) == len(TEXT)


def test_a_corpus_changed_on_disk_is_encoded_anew(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.txt": LETTERS}) / "a.txt"
    before = load(path, length=8, tokenizer="chars")
    path.write_text(LETTERS + "!" * 200)
    assert len(load(path, length=8, tokenizer="chars").validation) > len(before.validation)


def test_spreadsheets_are_refused_with_what_to_do(tmp_path: Path, load: Load) -> None:
    write(tmp_path / "x", {"book.xlsx": "PK", "other.txt": "a text " * 99})
    for path in (tmp_path / "x", tmp_path / "x" / "book.xlsx"):
        with pytest.raises(DataError, match=r"book\.xlsx' is a spreadsheet: save it as CSV"):
            load(path)
