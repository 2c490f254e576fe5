"""One thread a test process, and tiers of tests as `tiers` says.

Two pytest workers share two cores, and torch's threads spin.
"""

import datetime
import importlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

import tiers

torch.set_num_threads(1)
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def pytest_addoption(parser: pytest.Parser) -> None:
    tier = parser.getgroup("tiers")
    tier.addoption("--full", action="store_true", help="all tests")
    tier.addoption("--part", action="store_true", help="the day's part of the rest alone")
    tier.addoption("--draw", help="seed of the part and of the representatives (today's date)")
    tier.addoption("--changed", metavar="REF", help="tests that a diff from this commit reaches")
    tier.addoption("--record", type=Path, help="CSV of the files' tests and seconds to write")
    parser.addoption("--newest", help="file of the versions without which no test is run")


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in (
        (
            "full(reason, parts)",
            "why it is not run every time, and in how many parts the rest falls",
        ),
        ("dear(reason)", "of all members; why it is run for representatives every time"),
    ):
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    if config.option.newest:
        _require(Path(config.option.newest))
    # before processes are started, so that all draw the same part
    config.option.draw = config.option.draw or datetime.date.today().isoformat()


def _require(file: Path) -> None:
    """Libraries in exactly the versions of a file; a test would be skipped without one.

    torchvision is imported here alone, from a folder of its own: in a build that is not torch's it
    fails, also where transformers finds it, unless its operators, which timm does not use, have
    names. Processes that are started do not find it.
    """
    beside = str(file.absolute().parent / ".newest" / "beside")
    sys.path.append(beside)
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    for name, _, version in (line.partition("==") for line in lines):
        here = metadata.version(name).partition("+")[0]
        if here != version:
            raise pytest.UsageError(f"{name} is {here}, not {version} as in {file}")
    try:
        importlib.import_module("timm")
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith(("timm", "torchvision"))]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            OPERATORS.define(f"{name}(Tensor a) -> Tensor")
        importlib.import_module("timm")
    sys.path.remove(beside)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    option = config.option
    files = tiers.reached(option.changed) if option.changed else None

    def runs(item: pytest.Item) -> bool:
        default = tiers.is_default(item, option.draw)
        item.user_properties.append(("tier", "default" if default else "rest"))
        if files is not None and item.path not in files:
            return False
        if option.part:
            return not default and tiers.is_drawn(item, option.draw)
        return default or option.full

    chosen = [runs(item) for item in items]
    pairs = [*zip(items, chosen, strict=True)]
    config.hook.pytest_deselected(items=[item for item, taken in pairs if not taken])
    items[:] = [item for item, taken in pairs if taken]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    option = terminalreporter.config.option
    members = ", ".join(sorted(tiers.representatives(option.draw)))
    terminalreporter.write_line(f"drawn by --draw {option.draw}: {members}")
    if option.record:
        reports = [r for each in terminalreporter.stats.values() for r in each]
        tiers.record(option.record, [r for r in reports if isinstance(r, pytest.TestReport)])


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No mixers of one's own are known before, nor after."""
    from everyformer import family
    from everyformer.core import plugins
    from everyformer.genes.mixers import MIXERS

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(family, "_rows", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setenv(plugins.MODELS, "")
    family._known.cache_clear()
    yield
    plugins._load.cache_clear()
    family._known.cache_clear()
    for name, cls in list(MIXERS._entries.items()):
        if not cls.__module__.startswith("everyformer."):
            MIXERS._entries.pop(name)
