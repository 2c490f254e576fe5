"""Bad stores through the verbs: one sentence each that names what is wrong, and nothing lost."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from store_stand_ins import content

import everyformer as ef
from everyformer.data.tokenizers.plain import ByteTokenizer

Call = Callable[..., str]
ROWS = Path("rows")


@pytest.fixture
def said(call: Callable[..., tuple[int, str, str]]) -> Call:
    """The last line that a command line says, beside a model and a store of two texts."""
    Path("texts").mkdir()
    draw = random.Random(0)
    for name in ("a.txt", "b.txt"):
        Path("texts", name).write_bytes(bytes(draw.choices(range(97, 123), k=300)))
    torch.manual_seed(0)
    made = ef.create_model("rope", width=16, heads=2, layers=1, vocabulary=256, max_length=32)
    ef.save(made, "model", tokenizer=ByteTokenizer())

    def run(*words: str, code: int | None = None) -> str:
        found, out, err = call(*words)
        assert "Traceback" not in out + err
        assert found == code if code is not None else found in (1, 2), err
        return (err if found else out).strip().splitlines()[-1]

    run("index", "model", "--data", "texts", "--out", "store", "--context", "16", code=0)
    return run


READS = (
    ("eval", "model", "--data", "texts", "--data.length", "16", "--store", "store"),
    ("generate", "model", "--prompt", "ab", "--tokens", "3", "--store", "store"),
)


def flip(store: Path) -> None:
    path = store / "rows" / "values.bin"
    found = bytearray(path.read_bytes())
    found[77] ^= 1
    path.write_bytes(found)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(shutil.rmtree, "there is no store in store"), (flip, "values.bin was changed or damaged")],
)
def test_a_bad_store_is_one_sentence_of_every_verb_that_reads_it(said, damage, message):
    damage(Path("store"))
    for words in READS:
        line = said(*words, "--knn.k", "4")
        assert message in line
        assert len(line) < 450


def test_numbers_that_do_not_fit_are_named_as_they_are_written(said: Call) -> None:
    for words in READS:
        line = said(*words, "--knn.k", "599")
        assert "599 neighbours are requested from a store of 598" in line
        for weight in ("-0.1", "1.1", "nan"):
            assert "--knn.weight" in said(*words, "--knn.k", "4", f"--knn.weight={weight}")


def test_keys_that_are_no_numbers_are_not_stored(said: Call) -> None:
    torch.manual_seed(0)
    made = ef.create_model("rope", width=16, heads=2, layers=1, vocabulary=256, max_length=32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.mul_(1e5)
    ef.save(made, "large", tokenizer=ByteTokenizer())
    words = ("index", "large", "--data", "texts", "--out", "new", "--context", "16")
    assert "--precision float32" in said(*words)
    assert not list(Path("new").rglob("store.json"))
    shutil.rmtree("new")
    said(*words, "--precision", "float32", code=0)


def test_a_model_without_such_a_place_names_those_it_has(said: Call) -> None:
    made = ef.create_model("gmlp", width=16, layers=1, vocabulary=256, max_length=32)
    ef.save(made, "gated", tokenizer=ByteTokenizer())
    asked = ("index", "gated", "--data", "texts", "--out", "new")
    assert "attention-output" in said(*asked)
    assert not Path("new").exists()
    said(*asked, "--key", "attention-output", code=0)


def test_a_place_that_cannot_be_written_is_named_and_its_store_still_read(said, monkeypatch):
    before, real = content(Path("store")), os.open

    def refuse(path: object, flags: int, *rest: object, **options: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and "store" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    words = ("index", "model", "--data", "texts", "--out", "store2", "--context", "16")
    assert "Read-only file system; choose another place" in said(*words)
    for words in READS:
        said(*words, "--knn.k", "4", code=0)
    assert content(Path("store")) == before
