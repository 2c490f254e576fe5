"""Rows of the family that other packages offer by entry points."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everyformer import family
from everyformer.core.errors import ConfigError, PluginError

ROW = """
import dataclasses
from everyformer.family import FAMILY
ROW = dataclasses.replace(FAMILY[0], name="theirs")
"""
Offer = Callable[[str, str], None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Installs a package whose module holds a text, with one entry point."""

    def install(entry: str, text: str = ROW) -> None:
        about = tmp_path / "their_package-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0")
        (about / "entry_points.txt").write_text(f"[everyformer.members]\n{entry}\n")
        (tmp_path / f"{entry.split('=')[1].split(':')[0].strip()}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        family._known.cache_clear()

    yield install
    family._known.cache_clear()


def test_a_row_of_another_package_comes_last(offer: Offer) -> None:
    offer("theirs = their_row_1:ROW", ROW)
    assert [m.name for m in family.list_members()] == [m.name for m in family.FAMILY] + ["theirs"]
    assert family.info("theirs").title == family.FAMILY[0].title


@pytest.mark.parametrize(
    ("entry", "text", "said"),
    [
        ("attention = their_row_2:ROW", ROW, "is there already"),
        ("theirs = their_row_3:ROW", "1 / 0", "fails as it is imported: .*division"),
        ("theirs = their_row_4:ROW", "ROW = 3", "is no `Member` of that name, but 3"),
        ("others = their_row_5:ROW", ROW, "is no `Member` of that name, but Member"),
    ],
)
def test_what_is_no_row_names_its_package(entry: str, text: str, said: str, offer: Offer) -> None:
    offer(entry, text)
    named = (
        rf"the member '{entry.split()[0]}' of the package 'their-package' \({entry.split()[2]}\)"
    )
    with pytest.raises((ConfigError, PluginError), match=f"^{named} {said}"):
        family.info("attention")
