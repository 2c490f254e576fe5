"""Raw files as one row of tokens: what is copied together of others, without a copy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import pack, write

from everyformer.data import joined
from everyformer.data.joined import JoinedFiles
from everyformer.data.text import TextDataset

RANDOM = np.random.default_rng(0)
CONTENTS = [RANDOM.integers(1, 256, n, dtype=np.uint8).tobytes() for n in (5, 1, 40, 17, 300)]
FILES = {f"part{n}.bin": content for n, content in enumerate(CONTENTS)}


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("stretch", [(0, None), (3, 300), (6, 7), (45, 68)])
def test_files_are_the_row_of_their_bytes(
    ended: bool, stretch: tuple[int, int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "OPEN", 2)
    write(tmp_path, FILES)
    expected = np.frombuffer(b"".join(c + b"\0" * ended for c in CONTENTS), np.uint8)
    expected = expected[slice(*stretch)]
    row = JoinedFiles([tmp_path / name for name in FILES], ended, *stretch)
    assert len(row) == len(expected)
    assert np.array_equal(np.asarray(row), expected)
    for start in range(len(expected)):
        for stop in (start - 1, start, start + 1, start + 60, -1):
            assert np.array_equal(row[start:stop], expected[start:stop])
    assert np.array_equal(row[::7], expected[::7])
    at = RANDOM.integers(0, len(expected), (4, 3, 5))
    assert np.array_equal(row[at], expected[at])
    assert row[at[:0]].shape == (0, 3, 5)


def test_no_place_before_or_behind_the_row_is_read(tmp_path: Path) -> None:
    row = JoinedFiles([write(tmp_path, FILES) / name for name in FILES], True, 2, 9)
    for outside in (-1, 7):
        with pytest.raises(IndexError, match="of a row of 7 tokens"):
            row[np.array([0, outside])]


LAYOUTS = {
    "one file": {"a.bin": b"".join(CONTENTS)},
    "a folder": FILES,
    "its own parts": {
        **{f"train/{name}": content for name, content in FILES.items()},
        "validation/x.bin": CONTENTS[4],
        "README.md": b"what it is",
    },
}


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_raw_files_read_as_what_a_copy_of_them_would(
    layout: str, packing: bool, load: Any, tmp_path: Path
) -> None:
    files = LAYOUTS[layout]
    if packing and len(files) == 1:
        return
    folder = write(tmp_path / "files", files)
    source = folder if len(files) > 1 else folder / "a.bin"
    # the same files in a zip are copied
    copied = load(pack(tmp_path / "files.zip", files), length=16, packing=packing)
    here = load(source, length=16, packing=packing)
    assert isinstance(here, TextDataset)
    assert isinstance(here.train, JoinedFiles)
    assert isinstance(copied.train, np.memmap)
    for name in ("train", "validation"):
        assert np.array_equal(np.asarray(getattr(here, name)), np.asarray(getattr(copied, name)))
    assert (here.split, here.fingerprint, here.counting, here.bytes_per_token) == (
        copied.split, copied.fingerprint, copied.counting, copied.bytes_per_token,
    )  # fmt: skip
    pairs = [(d.train_batch(3, 5, 1), d.segment(2, 4)) for d in (here, copied)]
    pairs[0] += (*here.validation_batches(4), *here.in_order(3))
    pairs[1] += (*copied.validation_batches(4), *copied.in_order(3))
    for one, other in zip(*pairs, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_nothing_of_raw_files_is_copied_and_a_touched_one_is_looked_at_anew(
    load: Any, tmp_path: Path
) -> None:
    folder = write(tmp_path / "files", FILES)
    before = load(folder, length=16).fingerprint
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {"facts.json", "tokenizer.json"}
    (folder / "part2.bin").write_bytes(CONTENTS[2][::-1])
    assert load(folder, length=16).fingerprint != before


def test_with_hidden_tokens_too(load: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "files", FILES)
    data = load(folder, "mlm", length=16)
    assert isinstance(data.text.train, JoinedFiles)
    [*batches] = data.validation_batches(8)
    assert sum(len(batch.inputs) for batch in batches) == -(-len(data.text.validation) // 16)
