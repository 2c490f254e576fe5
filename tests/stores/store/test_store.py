"""A store gives back what was written, and refuses whatever is not as it was."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from store_stand_ins import ORIGIN, content, ended, forked, rows, write

from everyformer.core.errors import CheckpointError, DataError
from everyformer.stores.store import record as module
from everyformer.stores.store.record import bytes_needed
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer
from everyformer.system.sealed import DamagedError, write_json

SIZES = {"a": 5, "empty": 0, "b": 130, "c": 1}


@pytest.fixture(autouse=True)
def sums_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everyformer.stores.store.record.SUMMED", 16)
    monkeypatch.setattr("everyformer.stores.store.store.SUMMED", 16)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_was_written_is_read(tmp_path: Path, dtype: str) -> None:
    store = write(tmp_path, SIZES, dtype)
    written = [rows(size, seed=sum(name.encode())) for name, size in SIZES.items()]
    assert np.array_equal(store.keys, np.concatenate([k for k, _ in written]).astype(dtype))
    assert np.array_equal(store.values, np.concatenate([v for _, v in written]))
    assert store.values.dtype == np.int32
    assert store.values.max() > 65_535
    assert (len(store), store.width, store.record.dtype) == (136, 6, dtype)
    assert torch.equal(store.key_tensor, torch.from_numpy(np.array(store.keys)))
    assert "136 keys of width 6" in store.describe()
    files = [tmp_path / "rows" / name for name in ("keys.bin", "values.bin")]
    assert sum(f.stat().st_size for f in files) == bytes_needed(136, 6, dtype)
    assert set(content(tmp_path)) == {f"rows/{n}" for n in ("keys.bin", "store.json", "values.bin")}


def test_values_of_31_bits_survive(tmp_path: Path) -> None:
    with Writer.create(tmp_path, ORIGIN, 1) as writer:
        writer.add(torch.zeros(2, 1, dtype=torch.bfloat16), torch.tensor([0, 2**31 - 1]))
        writer.finish()
    assert Store.open(tmp_path).values.tolist() == [0, 2**31 - 1]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": "other"}, "another model: its model is model-1 and not other"),
        ({"tokenizer": "bpe"}, "another tokenizer: its tokenizer is bytes and not bpe"),
        ({"tap": "hidden:2"}, "another tap: its tap is ffn-input:-1 and not hidden:2"),
        ({"model": "o", "tap": "p"}, "another model and tap: .* and its tap"),
    ],
)
def test_another_origin_is_named(tmp_path: Path, changed: dict[str, str], told: str) -> None:
    write(tmp_path, SIZES)
    with pytest.raises(CheckpointError, match=f"made by the model of runs/one with {told}"):
        Store.open(tmp_path, dataclasses.replace(ORIGIN, **changed))
    Store.open(tmp_path, dataclasses.replace(ORIGIN, context=1, stride=1, run="moved"))


@pytest.mark.parametrize(("name", "left", "verify"), [("keys.bin", 0, True),
                                                      ("values.bin", 10, False)])  # fmt: skip
def test_a_store_cut_short_is_named(tmp_path: Path, name: str, left: int, verify: bool) -> None:
    write(tmp_path, SIZES)
    os.truncate(tmp_path / "rows" / name, left)
    with pytest.raises(DamagedError, match=rf"{name} was cut short: it has {left} bytes of"):
        Store.open(tmp_path, verify=verify)


@pytest.mark.parametrize(
    ("name", "size", "row", "told"),
    [("keys.bin", 24, 0, "0 and row 15"), ("keys.bin", 24, 135, "128 and row 135"),
     ("values.bin", 4, 40, "32 and row 47"), ("values.bin", 4, 135, "128 and row 135")],
)  # fmt: skip
def test_a_flipped_byte_is_named(tmp_path: Path, name: str, size: int, row: int, told: str) -> None:
    write(tmp_path, SIZES)
    path = tmp_path / "rows" / name
    data = bytearray(path.read_bytes())
    data[row * size] ^= 1
    path.write_bytes(data)
    Store.open(tmp_path, verify=False)
    with pytest.raises(DamagedError, match=f"{name} was changed .* between row {told}: make the"):
        Store.open(tmp_path)


def test_a_changed_record_a_missing_file_and_a_store_that_is_none_are_named(tmp_path: Path) -> None:
    write(tmp_path, SIZES)
    path = tmp_path / "rows" / "store.json"
    path.write_text(path.read_text().replace("136", "137"))
    with pytest.raises(DamagedError, match=r"store.json was changed or damaged"):
        Store.open(tmp_path)
    path.write_text("{")
    with pytest.raises(DamagedError, match=r"store.json cannot be read"):
        Store.open(tmp_path)
    write(tmp_path / "b", SIZES)
    (tmp_path / "b" / "rows" / "keys.bin").unlink()
    with pytest.raises(DamagedError, match=r"keys.bin cannot be read: No such file"):
        Store.open(tmp_path / "b")
    module.Record(ORIGIN, 6, "float32").write(tmp_path / "b" / "rows")
    with pytest.raises(DataError, match="is empty: make it again"):
        Store.open(tmp_path / "b")
    (tmp_path / "other").mkdir()
    for name in ("other", "nothing"):
        with pytest.raises(DataError, match=f"there is no store in .*{name}"):
            Store.open(tmp_path / name)
    assert not (tmp_path / "nothing").exists()


def test_a_newer_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, SIZES)
    path = tmp_path / "rows" / "store.json"
    values = json.loads(path.read_text())
    del values["digest"]
    monkeypatch.setattr("everyformer.system.sealed.VERSION", 99)
    write_json(path, values)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format version 99, but this everyformer reads"):
        Store.open(tmp_path)


def test_a_record_of_earlier_versions_with_rows_of_documents_is_read(tmp_path: Path) -> None:
    write(tmp_path, SIZES)
    path = tmp_path / "rows" / "store.json"
    values = json.loads(path.read_text())
    del values["digest"], values["count"]
    write_json(path, values | {"names": [*SIZES], "rows": [*SIZES.values()]})
    assert len(Store.open(tmp_path, ORIGIN)) == 136


def test_reading_changes_nothing_and_needs_no_right_to_write(tmp_path: Path) -> None:
    write(tmp_path, SIZES)
    (tmp_path / ".lock").unlink(missing_ok=True)
    before = {p: p.stat().st_mtime_ns for p in [tmp_path, *tmp_path.rglob("*")]}
    real = os.open

    def read_only(path: object, flags: int, *rest: object, **options: object) -> int:
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), path
        return real(path, flags, *rest, **options)  # type: ignore[arg-type]

    def reads() -> None:
        os.open = read_only  # type: ignore[assignment]
        Store.open(tmp_path).verify()

    assert ended(forked(reads)) == 0
    assert {p: p.stat().st_mtime_ns for p in [tmp_path, *tmp_path.rglob("*")]} == before
