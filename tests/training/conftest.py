"""Children are forked from a server that has torch imported already: a start takes milliseconds."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def children() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["training_stand_ins", "torch.utils.tensorboard", "torch._dynamo"]
    )
    return context


@pytest.fixture
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes a second, and few tests are about it."""
    import importlib.util

    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name != "tensorboard" and find(name, *rest)
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty store ``memory://``, and a machine that has nothing of it."""
    import fsspec

    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
