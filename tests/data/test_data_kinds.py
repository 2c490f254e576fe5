"""Kinds of data: which one a source is, which options each refuses, and those of other packages."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import Load, pack, picture, write

from everyformer.core.errors import ConfigError, PluginError, UnknownNameError
from everyformer.core.explained import field_docs
from everyformer.data import DataConfig, load_dataset
from everyformer.data.config import ELSEWHERE
from everyformer.data.kind import Request, TextFiles
from everyformer.data.load import KINDS, recognised
from everyformer.data.tokenizers.plain import ByteTokenizer

MORSE = """
from dataclasses import dataclass

from everyformer.core.config import Options
from everyformer.data.kind import Kind
from everyformer.data.sources import Source
from everyformer.data.text import load_text


@dataclass(frozen=True)
class MorseOptions(Options):
    dot: str = "."
    \"\"\"what a short tone is written as\"\"\"


class Morse(Kind):
    name = "Morse code"
    task = "lm"
    Options = MorseOptions

    @classmethod
    def recognises(cls, request):
        return request.config.source.endswith(".morse")

    def load(self):
        return load_text(self.request.source, self.config)
"""
Offer = Callable[..., None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Installs a package with one kind of data."""

    def install(module: str, text: str = MORSE) -> None:
        about = tmp_path / "site" / "morse_package-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: morse-package\nVersion: 1.0")
        entry = f"[everyformer.data]\nmorse = {module}:Morse\n"
        (about / "entry_points.txt").write_text(entry)
        (about.parent / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(about.parent)

    return install


def test_another_package_brings_a_kind(offer: Offer, tmp_path: Path, load: Load) -> None:
    offer("morse_1")
    path = write(tmp_path, {"a.morse": "... --- ... " * 20}) / "a.morse"
    assert load(path, length=8).task == "lm"
    with Request(DataConfig(source=str(path), options=("dot=o",))) as request:
        data = recognised(request)
    assert (data.name, data.options.dot) == ("Morse code", "o")
    for option, said in (
        ("dit=o", "unknown option `data.options=dit`"),
        ("dot=3", "`data.options=dot` must be str"),
        ("dot=", "`data.options` takes name=value, not 'dot='"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(path, options=(option,))
    with pytest.raises(ConfigError, match=r"`data\.options` has no meaning for .* another package"):
        load(write(tmp_path, {"a.txt": "text"}) / "a.txt", options=("dot=o",))


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("1 / 0", PluginError, "fails as it is imported: .*division"),
        ("Morse = 3", ConfigError, "is no `Kind` with a name and all methods, but 3"),
        (MORSE.replace("    name", "    title"), ConfigError, "is no `Kind` with a name"),
        (MORSE.replace("    task", "    job"), ConfigError, "is no `Kind` .* all methods"),
    ],
)
def test_what_is_no_kind_names_its_package(
    text: str, error: type[Exception], said: str, offer: Offer, load: Load
) -> None:
    module = f"morse_{abs(hash(text))}"
    offer(module, text)
    named = rf"the kind of data 'morse' of the package 'morse-package' \({module}:Morse\) {said}"
    with pytest.raises(error, match=named):
        load("stdlib")


def test_the_end_of_a_request_closes_its_source(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"a.txt": "text"})
    with Request(DataConfig(source=str(path))) as request:
        archive = request.source.archive
        assert archive is not None
        assert archive.fp is not None
    assert archive.fp is None


def test_a_built_in_of_episodes_refuses_what_episodes_refuse(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"built-in .walks., which are read `data\.context`"):
        load("walks", length=9)


SOURCES: dict[str, dict[str, Any]] = {
    "BuiltIn": {"source": "copy"},
    "Episodes": {"source": "minari:some-set"},
    "Arrays": {"source": "a.npy"},
    "Pictures": {"source": "pictures"},
    "ParallelText": {"source": "pairs"},
    "LabelledText": {"source": "a.csv"},
    "Text": {"source": "a.txt"},
}
REFUSED: dict[str, Any] = {
    "tokenizer": "chars",
    "part": "x",
    "tokens": 9,
    "unlabelled": "skip",
    "source_column": "x",
    "label_column": "x",
    "encoding": "latin-1",
    "split": ("group", "x"),
    "colour": "rgb",
    "labels": True,
    "mask_rate": 0.3,
    "packing": True,
    "best": 0.5,
    "depth": 3,
    "options": ("a=b",),
}
FILES = {
    "a.npy": b"\x93NUMPY",
    "pictures/a.png": picture(),
    "pairs/a.en": "one",
    "pairs/a.de": "eins",
    "a.csv": "text,label\na,b\n",
    "a.txt": "text",
}


def test_each_kind_has_a_source() -> None:
    assert {*REFUSED} <= {*ELSEWHERE} <= {*vars(DataConfig())}
    assert [*SOURCES] == [*(home.partition(":")[2] for home, _ in KINDS), "Text"]


@pytest.mark.parametrize("name", SOURCES)
def test_each_kind_refuses_the_options_that_it_does_not_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, FILES))
    options = SOURCES[name]
    with Request(DataConfig(**options)) as request:
        data = recognised(request)
    kind = type(data)
    assert kind.__name__ == name
    task = data.task if isinstance(data, TextFiles) else None
    assert {*data.reads} <= {*vars(request.config)}
    for option in {*REFUSED} - {*data.reads}:
        # which kind a text is may follow from it
        told = f"`data.{option}` has no meaning for "
        with (
            Request(DataConfig(**options | {option: REFUSED[option]}), task) as request,
            pytest.raises(ConfigError, match=told),
        ):
            recognised(request)


@pytest.mark.parametrize(
    ("source", "task", "option", "words"),
    [
        ("a.txt", "lm", {"mask_rate": 0.3}, "the task lm: it is for the task mlm"),
        ("a.csv", None, {"mask_rate": 0.4}, "the task classify-text: it is for the task mlm"),
        ("stdlib", "lm", {"mask_rate": 0.4}, "the built-in 'stdlib': it is for the task mlm"),
        ("digits", None, {"tokenizer": "chars"}, "the built-in 'digits': it is for text"),
        ("waves", None, {"symbols": 9}, "the built-in 'waves': it is for generated tasks"),
        ("copy", "lm", {"depth": 3}, "the built-in 'copy': it is for generated tasks"),
        ("tokens.npy", "lm", {"colour": "rgb"}, "arrays: it is for pictures"),
        ("tokens.npy", "lm", {"tokenizer": "chars"}, "arrays: it is for text"),
        ("series.npz", None, {"small": 3}, "arrays: it is for pictures that are drawn"),
        ("series.npz", None, {"packing": True}, "arrays: it is for lm and mlm on text"),
    ],
    ids=str,
)
def test_what_is_not_read_is_refused_where_it_is_said_and_passed_over_where_a_run_has_it(
    source: str, task: str | None, option: dict[str, Any], words: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(write(tmp_path, READ))
    np.save("tokens.npy", np.arange(400) % 9)
    np.savez("series.npz", x=np.random.default_rng(0).normal(size=(40, 8, 2)), y=np.arange(40) % 2)
    config = DataConfig(source=source, cache=str(tmp_path / "cache"), length=24, **option)
    name = next(iter(option))
    with pytest.raises(ConfigError, match=f"`data.{name}` has no meaning for {re.escape(words)}"):
        load_dataset(config, task)
    before = dataclasses.replace(config, validation=0.3)
    assert load_dataset(config, task, stored=before).fingerprint
    # which says nothing for what is said again beside it
    changed = dataclasses.replace(config, best=0.5)
    with pytest.raises(ConfigError, match=r"`data\.best` has no meaning for"):
        load_dataset(changed, task, stored=before)


def test_the_tokenizer_of_a_run_comes_with_it_to_arrays_too(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(400) % 9)
    config = DataConfig(source=str(tmp_path / "tokens.npy"), tokenizer="chars", length=24)
    assert load_dataset(config, "lm", tokenizer=ByteTokenizer()).tokenizer is None


LINES = [f"some words of line {n} " * (n % 3 + 1) for n in range(40)]
READ: dict[str, Any] = {
    "a.txt": "\n".join(LINES),
    "a.csv": "text,label\n" + "".join(f"{line},{len(line) % 2}\n" for line in LINES),
}


# values that cannot be meant


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "byte"}, "did you mean 'bytes'"),
        ({"tokenizer": "bpe"}, "needs a vocabulary size"),
        ({"tokenizer": "bpe:256"}, "at least 257"),
        ({"tokenizer": "chars:80"}, "takes no size"),
        ({"validation": 0.0}, "above 0"),
        ({"length": 1}, "`length` must be at least 2"),
        ({"seed": -1}, "`seed` must"),
        ({"colour": "gray"}, "did you mean 'grey'"),
        ({"source": " "}, "is empty"),
    ],
)
def test_an_impossible_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**options)


def test_every_option_is_explained() -> None:
    assert set(field_docs(DataConfig)) == {f.name for f in dataclasses.fields(DataConfig)}


def test_reading_the_options_imports_no_torch() -> None:
    code = (
        "import sys, everyformer.data as d; d.DataConfig; d.BUILTINS; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_misspelt_built_in_is_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'stdlib'"):
        load_dataset(DataConfig(source="stdlb"))


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pixels'"):
        load_dataset(DataConfig(), "pixel")


@pytest.mark.parametrize("folder", [True, False])
def test_a_built_in_is_read_before_what_lies_here_and_says_so(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = DataConfig("copy", length=16, symbols=8)
    plain = load_dataset(config)
    place = tmp_path / "copy"
    place.mkdir() if folder else place.write_text("mine")
    data = load_dataset(config)
    assert data.split == f"the built-in 'copy' is read, not what lies here as ./copy; {plain.split}"
    assert data.fingerprint == plain.fingerprint


@pytest.mark.full("a process that imports torch")
def test_a_text_reads_no_room_of_pictures_or_episodes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a warm tree " * 400, encoding="utf-8")
    code = (
        "import sys; from everyformer.data import DataConfig, load_dataset\n"
        "load_dataset(DataConfig(source='a.txt', length=8, cache='cache'))\n"
        "print([m for m in sys.modules if m.startswith('everyformer.data.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rooms = ("images", "arrays", "episodes", "parallel", "labelled", "builtin'")
    assert [room for room in rooms if f"everyformer.data.{room}" in done.stdout] == []
