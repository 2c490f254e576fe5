"""Kinds of data: which one a source is, which options each refuses, and kinds of other packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_files import Load, pack, picture, write

from everyformer.core.errors import ConfigError, PluginError
from everyformer.data import DataConfig
from everyformer.data.config import GROUPS, DataOptions
from everyformer.data.kind import Kind, Request
from everyformer.data.load import KINDS, recognised
from everyformer.data.text_files import TextFiles

MORSE = """
from dataclasses import dataclass

from everyformer.core.config import Options
from everyformer.data.config import SharedOptions
from everyformer.data.kind import Kind
from everyformer.data.sources import Source
from everyformer.data.text import load_text


@dataclass(frozen=True)
class MorseOptions(Options):
    dot: str = "."
    \"\"\"what a short tone is written as\"\"\"


class Morse(Kind):
    name = "Morse code"
    reads = (SharedOptions,)
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
        ("dit=o", "unknown option '--data.options dit'"),
        ("dot=3", "'--data.options dot' must be str"),
        ("dot=", "--data.options takes name=value, not 'dot='"),
    ):
        with pytest.raises(ConfigError, match=said):
            load(path, options=(option,))
    with pytest.raises(ConfigError, match=r"--data\.options has no meaning for .* another package"):
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
    with pytest.raises(ConfigError, match=r"built-in .walks., which are read --data\.context"):
        load("walks", length=9)


SOURCES: dict[str, dict[str, Any]] = {
    "Environment": {"env": "CartPole-v1"},
    "BuiltIn": {"source": "copy"},
    "Episodes": {"source": "minari:some-set"},
    "Arrays": {"source": "a.npy"},
    "Pictures": {"source": "pictures"},
    "ParallelText": {"source": "pairs"},
    "LabelledText": {"source": "a.csv"},
    "Text": {"source": "a.txt"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "PartOptions": {"part": "x"},
    "ParallelOptions": {"tokens": 9},
    "TableOptions": {"source_column": "x"},
    "DrawingOptions": {"labels": True},
    "PackingOptions": {"packing": True},
    "EpisodeOptions": {"context": 3},
    "EnvironmentOptions": {"env_number": 3},
    "PluginOptions": {"options": ("a=b",)},
}
FILES = {
    "a.npy": b"\x93NUMPY",
    "pictures/a.png": picture(),
    "pairs/a.en": "one",
    "pairs/a.de": "eins",
    "a.csv": "text,label\na,b\n",
    "a.txt": "text",
}


@pytest.mark.parametrize("group", [group for group in GROUPS if group.elsewhere])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_refuses_the_options_that_it_does_not_read(
    kind: type[Kind], group: type[DataOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, FILES))
    options = SOURCES[kind.__name__]
    with Request(DataConfig(**options)) as request:
        data = recognised(request)
        assert type(data) is kind
    if group in kind.reads:
        return
    option = REFUSED[group.__name__]
    name = next(iter(option)).replace("_", "-")
    task = data.task if isinstance(data, TextFiles) else None
    with (
        Request(DataConfig(**options | option), task) as request,
        pytest.raises(ConfigError, match=f"--data.{name} has no meaning for "),
    ):
        recognised(request)
