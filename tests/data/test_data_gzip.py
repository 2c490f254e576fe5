"""A file NAME.gz is read as NAME, of whatever kind, and a broken one is named."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from data_files import Load, delimited, pack, picture, write

from everyformer.core.errors import DataError
from everyformer.data import sources
from everyformer.data.sources import open_source

ROWS = [["text", "label"], *([f"word {n} again", "ab"[n % 2]] for n in range(30))]
TEXT = "To be, or not to be, that is the question. " * 40


def arrays() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.arange(120).reshape(30, 4) % 7, y=np.arange(30) % 2)
    return file.getvalue()


CONTENTS = {
    "a.txt": TEXT.encode(),
    "reviews.csv": delimited(ROWS).encode(),
    "lines.jsonl": b"".join(b'{"text": "row %d of many"}\n' % n for n in range(60)),
    "tokens.npz": arrays(),
}


@pytest.mark.parametrize("home", ["file", "folder", "glob", "zip"])
@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_packed_is_read_as_what_is_not(
    name: str, home: str, tmp_path: Path, load: Load
) -> None:
    options = {"length": 8, "seed": 1}
    plain = load(write(tmp_path / "plain", {name: CONTENTS[name]}) / name, **options)
    packed = {f"{name}.gz": gzip.compress(CONTENTS[name])}
    folder = write(tmp_path / "packed", packed)
    source = {
        "file": folder / f"{name}.gz",
        "folder": folder,
        "glob": f"{folder}/*.gz",
        "zip": pack(tmp_path / "x.zip", packed),
    }[home]
    data = load(source, **options)
    assert (data.task, data.fingerprint) == (plain.task, plain.fingerprint)
    if home == "file":
        assert data.name == plain.name == name.partition(".")[0]


def test_pictures_are_read_packed(tmp_path: Path, load: Load) -> None:
    files = {f"{c}/{n}.png.gz": gzip.compress(picture(n)) for c in "ab" for n in range(4)}
    assert load(write(tmp_path, files)).counts == (4, 4)


def test_sizes_are_those_of_the_content_and_of_all_members_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one") + gzip.compress(b" two"))
    with open_source(str(path)) as source:
        [entry] = source.entries
        assert (entry.name, entry.suffix) == ("a.txt", ".txt")
        assert source.size(entry) == len(source.read(entry)) == 7


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip"])
def test_a_broken_file_is_one_sentence_with_its_name(
    damage: str, name: str, tmp_path: Path, load: Load
) -> None:
    raw = bytearray(gzip.compress(CONTENTS[name]))
    if damage == "cut":
        del raw[-9:]
    elif damage == "flipped":
        # the sum over the content, behind it
        raw[-6] ^= 0xFF
    else:
        raw = bytearray(CONTENTS[name])
    path = write(tmp_path, {f"{name}.gz": bytes(raw)}) / f"{name}.gz"
    with pytest.raises(DataError, match=rf"{name}\.gz' cannot be unpacked: .* fetch it again"):
        load(path, length=8)


def test_a_file_that_is_there_twice_or_holds_nothing_is_refused(tmp_path: Path, load: Load) -> None:
    files = {"a.txt": TEXT, "a.txt.gz": gzip.compress(TEXT.encode()), "b.txt": TEXT}
    for source in (write(tmp_path / "x", files), pack(tmp_path / "x.zip", files)):
        with pytest.raises(DataError, match=r"has 'a\.txt' packed \(\.gz\) and unpacked"):
            load(source, length=8)
    with pytest.raises(DataError, match="is empty"):
        load(write(tmp_path, {"e.txt.gz": gzip.compress(b"")}) / "e.txt.gz", length=8)


def test_what_would_grow_beyond_belief_is_refused(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SMALL_ZIP", 1 << 20)
    path = write(tmp_path, {"a.txt.gz": gzip.compress(b"a" * (4 << 20))}) / "a.txt.gz"
    assert len(path.read_bytes()) < 1 << 13
    with pytest.raises(DataError, match=r"a\.txt\.gz' would grow from"):
        load(path, length=8)
