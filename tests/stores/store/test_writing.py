"""Whatever befalls a writer: what was committed stays, and going on gives the bytes of one go."""

import dataclasses
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from store_stand_ins import ORIGIN, WIDTH, content, ended, forked, killed_at, rows, write

from everyformer.core.errors import (
    CheckpointError,
    DataError,
    EveryformerError,
    ResourceError,
    ShapeError,
    UnsavedError,
)
from everyformer.stores.store.record import Record
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer, is_finished, is_unfinished
from everyformer.system.files import sweep

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
SIZES = {"a": 40, "b": 7, "c": 33}
FEW = {"a": 9, "b": 5, "c": 7}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyformer.stores.store.record.SUMMED", 16)
    monkeypatch.setattr("everyformer.stores.store.store.SUMMED", 16)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a kill leaves what the system holds


def go_on(folder: Path, sizes: dict[str, int]) -> None:
    """A producer: texts in pieces of four rows, a commit after every third piece."""
    if is_unfinished(folder):
        writer = Writer.resume(folder, ORIGIN)
    elif not is_finished(folder):
        writer = Writer.create(folder, ORIGIN, WIDTH, "float32")
    else:
        return
    with writer:
        done = writer.cursor or 0
        pieces = [(name, n) for name, size in sizes.items() for n in range(0, size, 4)]
        for at, (name, n) in enumerate(pieces[done:], done):
            keys, values = rows(sizes[name], seed=sum(name.encode()))
            writer.add(keys[n : n + 4], values[n : n + 4])
            if at % 3 == 2:
                writer.commit(at + 1)
        writer.finish()


def safe(folder: Path) -> int:
    """Rows that are on the disk for good."""
    rows = folder / "rows"
    counts = [Record.read(rows).count] if is_finished(folder) else [0]
    return max([*counts, *([Record.read_progress(rows)[0].count] if is_unfinished(folder) else [])])


def every_kill(work: Callable[[Path], None], parent: Path, look: Callable[[Path], None]) -> int:
    """Kill ``work`` in a folder of its own at each of its changes of the disk, and ``look``."""
    at = 0
    while True:
        folder = parent / f"killed-{at}"
        if not killed_at(lambda folder=folder: work(folder), at):
            return at
        look(folder)
        at += 1


@pytest.mark.full("seconds each", parts=3)
def test_a_kill_at_any_change_of_the_disk_leaves_a_store_to_go_on_with(tmp_path: Path) -> None:
    write(tmp_path / "whole", FEW)
    kept = [0]

    def look(folder: Path) -> None:
        kept.append(safe(folder))
        assert kept == sorted(kept)  # a kill that comes later loses nothing
        go_on(folder, FEW)
        sweep(folder / "rows")
        assert content(folder) == content(tmp_path / "whole")

    assert every_kill(lambda f: go_on(f, FEW), tmp_path, look) > 20


@pytest.fixture
def opened(tmp_path: Path) -> Writer:
    writer = Writer.create(tmp_path, ORIGIN, 2)
    writer.add(np.zeros((1, 2)), np.zeros(1, int))
    return writer


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("keys", "values", "error", "told"),
    [
        ([[0.0, 1.0], [NAN, 0.0]], [1, 2], DataError, "its key 1 of those given is not finite"),
        ([[0.0, -INF]], [1], DataError, "its key 0 of those given is not finite"),
        ([[0.0, 7e4]], [1], DataError, "a key has 70,000, and float16 holds .* 65,504: .*float32"),
        ([[0.0, 1.0]], [-1], DataError, "from 0 to 2,147,483,647, not -1"),
        ([[0.0, 1.0]], [2**31], DataError, "from 0 to 2,147,483,647, not 2,147,483,648"),
        ([[0.0, 1.0]], [0.5], ShapeError, "values must be 1 whole numbers"),
        ([[0.0, 1.0]], [1, 2], ShapeError, "values must be 1 whole numbers, one a key"),
        ([[0.0]], [1], ShapeError, r"floats of shape \(n, 2\), not float32 of \(1, 1\)"),
        ([0.0, 1.0], [1], ShapeError, r"floats of shape \(n, 2\), not float32 of \(2,\)"),
        ([[0, 1]], [1], ShapeError, r"floats of shape \(n, 2\), not int64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_place(opened, keys, values, error, told):
    with opened as writer:
        for as_given in (torch.tensor, lambda v: torch.tensor(v).numpy()):
            with pytest.raises(error, match=f"behind row 1: .*{told}"):
                writer.add(as_given(keys), as_given(values))
        writer.finish()
    assert len(Store.open(opened.folder)) == 1


def test_a_cursor_comes_back_as_it_was_given(opened: Writer) -> None:
    cursor = {"file": "poem.txt", "at": [1, 2.5, None, -INF]}
    with opened:
        opened.commit(cursor)
        opened.add(np.ones((3, 2)), np.ones(3, int))
    with Writer.resume(opened.folder, ORIGIN) as again:
        assert again.cursor == cursor
        assert again.count == 1
        again.add(np.ones((1, 2)), np.ones(1, int))
        assert again.record.count == 2


def test_a_second_writer_is_refused(opened: Writer) -> None:
    folder = opened.folder
    for attempt in (
        lambda: Writer.create(folder, ORIGIN, 2),
        lambda: Writer.resume(folder, ORIGIN),
    ):

        def other(attempt: Callable[[], object] = attempt) -> None:
            with pytest.raises(DataError, match="is being written by another process"):
                attempt()

        assert ended(forked(other)) == 0
    opened.close()


@pytest.mark.parametrize("changed", [{"model": "x"}, {"tap": "x"}, {"context": 1}, {"stride": 1}])
def test_rows_of_another_origin_are_not_added(tmp_path: Path, changed: dict) -> None:
    with Writer.create(tmp_path, ORIGIN, 2) as writer:
        writer.add(np.zeros((1, 2)), np.zeros(1, int))
        writer.commit(1)
    with pytest.raises(CheckpointError, match=f"another {next(iter(changed))}"):
        Writer.resume(tmp_path, dataclasses.replace(ORIGIN, **changed))
    Writer.resume(tmp_path, ORIGIN).close()


def test_what_cannot_be_begun_says_so(tmp_path: Path) -> None:
    write(tmp_path / "done", SIZES)
    with Writer.create(tmp_path / "begun", ORIGIN, 2) as writer:
        writer.add(np.zeros((1, 2)), np.zeros(1, int))
        writer.commit(1)
    (tmp_path / "file").write_text("")
    for work, told in (
        (lambda: Writer.create(tmp_path / "done", ORIGIN, 2), "there is a store in .* already"),
        (lambda: Writer.create(tmp_path / "begun", ORIGIN, 2), "there is a store in .* already"),
        (lambda: Writer.create(tmp_path / "file", ORIGIN, 2), "is a file"),
        (lambda: Writer.create(tmp_path / "n", ORIGIN, 0), "must be at least 1, not 0"),
        (lambda: Writer.create(tmp_path / "n", ORIGIN, 2, "int8"), "float16 or float32, not as"),
        (lambda: Store.open(tmp_path / "begun"), "not finished: 1 rows are in it"),
        (lambda: Writer.resume(tmp_path / "none", ORIGIN), "there is no store in"),
    ):
        with pytest.raises(EveryformerError, match=told):
            work()
    assert not (tmp_path / "none").exists()
    with pytest.raises(DataError, match="is finished: there is nothing to continue"):
        Writer.resume(tmp_path / "done", ORIGIN)
    # room is looked for before anything is written
    with pytest.raises(ResourceError, match=r"a store of 1,0.* needs [\d.,]+ TiB .* are free"):
        Writer.create(tmp_path / "new", ORIGIN, 1024, rows=10**12)
    assert not (tmp_path / "new").exists()
    empty = Writer.create(tmp_path / "empty", ORIGIN, 2)
    with empty, pytest.raises(DataError, match="would be empty: add text to it"):
        empty.finish()
    assert not is_unfinished(tmp_path / "empty")
    os.truncate(tmp_path / "begun" / "rows" / "keys.bin", 1)
    with pytest.raises(CheckpointError, match=r"keys.bin was cut short"):
        Writer.resume(tmp_path / "begun", ORIGIN)


def full_disk(work: Callable[[], object], most: int) -> None:
    """Do ``work`` where no file may grow beyond ``most`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(UnsavedError, match=r"cannot write .*what was there before is unto"):
            work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most", [100, 1500, 2500])
def test_a_full_disk_leaves_a_store_to_go_on_with(tmp_path: Path, most: int) -> None:
    full_disk(lambda: go_on(tmp_path / "new", {"long": 400}), most)
    go_on(tmp_path / "new", {"long": 400})
    write(tmp_path / "whole", {"long": 400})
    assert content(tmp_path / "new") == content(tmp_path / "whole")
