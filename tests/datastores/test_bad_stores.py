"""Bad stores through the verbs: one sentence each that names what is wrong, and nothing lost."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.cli import main
from everyformer.data.tokenizers.plain import ByteTokenizer

Call = Callable[..., str]
ROWS = Path("rows")


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """The last line that a command line says, beside a model and a store of two texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    Path("texts").mkdir()
    draw = random.Random(0)
    for name in ("a.txt", "b.txt"):
        Path("texts", name).write_bytes(bytes(draw.choices(range(97, 123), k=300)))
    torch.manual_seed(0)
    made = ef.create_model("rope", width=16, heads=2, layers=1, vocabulary=256, max_length=32)
    ef.save(made, "model", tokenizer=ByteTokenizer())

    def run(*words: str, code: int | None = None) -> str:
        capsys.readouterr()
        found = main(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert found == code if code is not None else found in (1, 2), err
        return (err if found else out).strip().splitlines()[-1]

    run("index", "model", "--data", "texts", "--out", "store", "--context", "16", code=0)
    return run


def content(folder: str) -> dict[str, bytes]:
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
    return {path.name: path.read_bytes() for path in sorted(files)}


READS = (
    ("eval", "model", "--data", "texts", "--data.length", "16", "--store", "store"),
    ("generate", "model", "--prompt", "ab", "--tokens", "3", "--store", "store"),
    ("show", "model", "neighbours", "--text", "abcdef", "--store", "store"),
)
ADDS = ("index", "model", "--data", "more.txt", "--out", "store", "--append", "--context", "16")


def flip(store: Path) -> None:
    path = store / ROWS / "values.bin"
    found = bytearray(path.read_bytes())
    found[77] ^= 1
    path.write_bytes(found)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (shutil.rmtree, "there is no store in store"),
        (flip, "values.bin was changed or damaged"),
    ],
)
def test_a_bad_store_is_one_sentence_of_every_verb_that_reads_it(
    call: Call, damage: Callable[[Path], None], told: str
) -> None:
    damage(Path("store"))
    before = content("store") if Path("store").exists() else None
    for words in READS:
        said = call(*words, "--knn.k", "4")
        assert told in said
        assert len(said) < 450
    if before is not None:
        assert content("store") == before


def test_numbers_that_do_not_fit_are_named_as_they_are_written(call: Call) -> None:
    for words in READS:
        said = call(*words, "--knn.k", "599")
        assert "599 neighbours are asked of a store that has 598" in said
        for weight in ("-0.1", "1.1", "nan"):
            assert "--knn.weight" in call(*words, "--knn.k", "4", f"--knn.weight={weight}")
    assert "--knn.exclude-self" in call(*READS[1], "--knn.k", "4", "--knn.exclude-self")


@pytest.mark.parametrize(
    ("scale", "told"), [(1e38, "not finite: look at the model"), (1e5, "--precision float32")]
)
def test_keys_that_are_no_numbers_are_not_stored(call: Call, scale: float, told: str) -> None:
    torch.manual_seed(0)
    made = ef.create_model("rope", width=16, heads=2, layers=1, vocabulary=256, max_length=32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.mul_(scale)
    ef.save(made, "large", tokenizer=ByteTokenizer())
    asked = ("index", "large", "--data", "texts", "--out", "new", "--context", "16")
    said = call(*asked)
    assert told in said
    assert "a.txt" in said
    assert not list(Path("new").rglob("store.json"))
    if scale == 1e5:
        shutil.rmtree("new")
        call(*asked, "--precision", "float32", code=0)


def test_a_model_without_such_a_place_names_those_it_has(call: Call) -> None:
    made = ef.create_model("gmlp", width=16, layers=1, vocabulary=256, max_length=32)
    ef.save(made, "gated", tokenizer=ByteTokenizer())
    asked = ("index", "gated", "--data", "texts", "--out", "new")
    assert "attention-output" in call(*asked)
    assert not Path("new").exists()
    call(*asked, "--key", "attention-output", code=0)


def test_a_place_that_cannot_be_written_is_named_and_its_store_still_read(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("more.txt").write_text("more of it")
    before, real = content("store"), os.open

    def refuse(path: object, flags: int, *rest: object, **options: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and "store" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    for words in (ADDS, (*READS[0], "--knn.k", "4", "--nearest.kind", "ivf")):
        assert "Read-only file system; choose another place" in call(*words)
    for words in READS:
        call(*words, "--knn.k", "4", code=0)
    assert content("store") == before


def test_a_full_disk_loses_nothing(call: Call) -> None:
    asked = ("index", "model", "--data", "texts", "--out", "new", "--context", "16")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limit[1]))
    try:
        assert "cannot write" in call(*asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    call(*asked, "--resume", code=0)
    assert content("new") == content("store")
