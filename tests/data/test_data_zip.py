"""A zip can do no harm: no path leads out of it, and none grows without bound."""

import zipfile
from pathlib import Path

import pytest
from data_files import Load, pack

from everyformer.core.errors import DataError
from everyformer.data import sources

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


def test_a_zip_that_hides_its_real_size_is_refused(tmp_path: Path, load: Load) -> None:
    path = pack(tmp_path / "x.zip", {"a.txt": TEXT})
    real, told = len(TEXT).to_bytes(4, "little"), (600).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(real, told))
    with pytest.raises(DataError, match=r"'a\.txt' in .*x\.zip' cannot be unpacked"):
        load(path, length=8)


@pytest.mark.parametrize("keep", [10, 60, 90])
def test_a_zip_cut_short_is_refused(keep: int, tmp_path: Path, load: Load) -> None:
    path = pack(tmp_path / "x.zip", {"a.txt": TEXT})
    path.write_bytes(path.read_bytes()[: -100 + keep])
    with pytest.raises(DataError, match=r"x\.zip' cannot be unpacked"):
        load(path)


def test_an_encrypted_zip_is_refused(tmp_path: Path, load: Load) -> None:
    path = pack(tmp_path / "x.zip", {"a.txt": TEXT})
    content = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + flags] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="encrypted"):
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
