"""One thread a test process, and two tiers of tests.

Two pytest workers share two cores, and torch's threads spin. A test that is marked ``full`` says
why it is not needed every time; a part of these, drawn by the day's date, runs with the others: one
of `PARTS`, or of as many as the mark says.
"""

import datetime
import importlib
import sys
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
PARTS = 24
"""into how many parts the full tier falls, of which one is drawn; a mark may say another number"""

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the whole full tier")
    parser.addoption("--newest", help="file of the versions without which no test is run")
    parser.addoption("--draw", help="seed of the part of the full tier that is run (today's date)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "full(reason, parts): why it is not run every time, and how often it is: once in so many",
    )
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
    def runs(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("full")
        if mark is None or config.option.full:
            return True
        name = f"{config.option.draw} {item.nodeid}"
        return zlib.crc32(name.encode()) % mark.kwargs.get("parts", PARTS) == 0

    left = [item for item in items if not runs(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if runs(item)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    option = terminalreporter.config.option
    part = "whole" if option.full else f"a part of it, drawn by --draw {option.draw}"
    terminalreporter.write_line(f"full tier: {part}")


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No mixers of one's own are known before, nor after."""
    from everyformer import family
    from everyformer.core import plugins as own
    from everyformer.genes.mixers import MIXERS

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own, "_registered", {})
    monkeypatch.setattr(family, "_rows", {})
    monkeypatch.setenv(own.VARIABLE, "")
    family._known.cache_clear()
    yield
    own._load.cache_clear()
    family._known.cache_clear()
    for name, cls in list(MIXERS._entries.items()):
        if not cls.__module__.startswith("everyformer."):
            MIXERS._entries.pop(name)
