"""Batches are functions of step and seed, and processes build their own rows of each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import write

from everyformer.data.batch import TENSORS, Batch, Portion
from everyformer.data.dataset import Dataset
from everyformer.data.selection import Draws, epoch_rows
from everyformer.data.text import TextDataset

TEXT = "".join(f"line {n} of a long text\n" for n in range(300))
DOCUMENTS = {f"part{n}.txt": TEXT[: 700 + 50 * n] for n in range(6)}
PAIRS = {
    "a.en": "".join("word " * (1 + n % 7) + f"{n}\n" for n in range(90)),
    "a.de": "".join("wort " * (1 + n % 5) + f"{n}\n" for n in range(90)),
}
SOURCES: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "text": ({"a.txt": TEXT}, None, {"length": 16}),
    "packed": (DOCUMENTS, None, {"length": 64, "packing": True}),
    "masked": ({"a.txt": TEXT}, "mlm", {"length": 16}),
    "pairs": (PAIRS, "seq2seq", {"length": 40}),
    "pairs by tokens": (PAIRS, "seq2seq", {"length": 40, "tokens": 300}),
    "labelled": ({f"{c}/{n}.txt": c * n for c in "xy" for n in range(1, 9)}, None, {"length": 8}),
    "pictures": ("digits", "classify", {}),
    "copy": ("copy", None, {"length": 9}),
    **{name: (name, None, {"length": 64}) for name in ("listops", "reverse", "sort")},
    "waves": ("waves", None, {"length": 12}),
    "walks": ("walks", None, {}),
}
SIZES = [(7, 3), (4, 4), (9, 2), (5, 1)]


def made(name: str, load: Any, folder: Path) -> Dataset:
    files, task, options = SOURCES[name]
    source = files if isinstance(files, str) else write(folder / "data", files)
    if len(files) == 1:
        source = source / next(iter(files))
    data: Dataset = load(source, task, **options)
    return data


def of(batch: Batch, name: str) -> Any:
    return getattr(batch, name)


def check(whole: Batch, parts: list[Batch]) -> None:
    joined = Batch.joined(parts)
    for name in TENSORS:
        assert all((of(part, name) is None) == (of(whole, name) is None) for part in parts), name
        if of(whole, name) is not None:
            assert torch.equal(of(joined, name).nan_to_num(7), of(whole, name).nan_to_num(7)), name
    assert sum(part.tokens for part in parts) == whole.tokens
    assert sum(part.scored for part in parts) == whole.scored


@pytest.mark.parametrize("name", SOURCES)
def test_a_batch_is_a_function_of_step_and_seed(name: str, load: Any, tmp_path: Path) -> None:
    data, again = (made(name, load, tmp_path) for _ in range(2))
    first = data.train_batch(3, 8, 1)
    data.train_batch(4, 8, 1)
    for one in (data, again):
        check(first, [one.train_batch(3, 8, 1)])
    for step, seed in ((4, 1), (3, 2)):
        assert not torch.equal(data.train_batch(step, 8, seed).inputs, first.inputs)
    files, task, options = SOURCES[name]
    if isinstance(files, str) and name not in ("pictures", "walks"):
        other = load(files, task, seed=9, **options)
        assert not torch.equal(other.train_batch(3, 8, 1).inputs, first.inputs)


@pytest.mark.parametrize("name", SOURCES)
def test_shares_of_a_step_are_the_whole_batch_bit_for_bit(
    name: str, load: Any, tmp_path: Path
) -> None:
    data = made(name, load, tmp_path)
    for size, count in SIZES:
        for step in (0, 3):
            shares = [data.train_batch(step, size, 5, Portion(n, count)) for n in range(count)]
            check(data.train_batch(step, size, 5), shares)


@pytest.mark.parametrize("name", ["text", "packed"])
def test_shares_of_streams_go_on_as_the_whole_ones(name: str, load: Any, tmp_path: Path) -> None:
    data = made(name, load, tmp_path)
    assert isinstance(data, TextDataset)
    documents = set()
    for size, count in SIZES:
        for step in range(12):
            whole = data.segment(step, size)
            check(whole, [data.segment(step, size, Portion(n, count)) for n in range(count)])
            documents.add(whole.documents is None)
    assert documents == ({True, False} if name == "text" else {False})


class Counted:
    """A row of tokens that counts how many are read from it."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens, self.read = tokens, 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> np.ndarray:
        result = self.tokens[at]
        self.read += result.size
        return result


def test_a_process_reads_and_builds_the_bytes_of_its_own_rows_alone() -> None:
    length, size, count = 32, 64, 8
    row: Any = Counted(np.arange(5000, dtype=np.int32) % 50)
    data = TextDataset(
        name="text", task="lm", kind="text", vocabulary=50, length=length, split="",
        fingerprint="", train=row, validation=row.tokens,
    )  # fmt: skip

    def built(batch: Batch) -> int:
        return sum(t.nbytes for name in TENSORS if (t := of(batch, name)) is not None)

    whole = built(data.train_batch(0, size, 0))
    assert (whole, row.read) == (2 * size * length * 8, size * (length + 1))
    row.read = 0
    assert built(data.train_batch(0, size, 0, Portion(3, count))) * count == whole
    assert row.read * count == size * (length + 1)
    row.read = 0
    assert built(data.segment(1, size, Portion(3, count))) * count == 2 * size * length * 8
    assert row.read * count == 2 * size * length


@pytest.mark.parametrize(("rows", "count"), [(7, 3), (5, 5), (3, 4), (8, 1)])
def test_numbers_of_a_share_are_those_of_its_rows_however_often_they_are_drawn(
    rows: int, count: int
) -> None:
    whole = Draws((1, 2), rows)
    parts = [Draws((1, 2), rows, Portion(n, count)) for n in range(count)]
    plain = np.random.default_rng((1, 2))
    for columns in (4, 1, 9):
        expected = plain.random((rows, columns))
        assert np.array_equal(whole.uniform(columns), expected)
        assert np.array_equal(np.concatenate([p.uniform(columns) for p in parts]), expected)


def test_an_epoch_has_every_row_once() -> None:
    rows = np.arange(100, 123)
    drawn = np.concatenate([epoch_rows(rows, step, 10, 4) for step in range(23)])
    epochs = drawn.reshape(10, 23)
    assert all(sorted(epoch) == rows.tolist() for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 10
    parts = [epoch_rows(rows, 2, 10, 4, Portion(n, 3)) for n in range(3)]
    assert np.array_equal(np.concatenate(parts), epoch_rows(rows, 2, 10, 4))
    assert not np.array_equal(epoch_rows(rows, 0, 23, 4), epoch_rows(rows, 0, 23, 5))
