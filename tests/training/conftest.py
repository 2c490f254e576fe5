"""Children are forked from a server that has torch imported already: a start takes milliseconds."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest


@pytest.fixture(scope="session")
def children() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["training_stand_ins", "torch.utils.tensorboard", "torch._dynamo"]
    )
    return context


@pytest.fixture(autouse=True)
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes a second, and few tests are about it: those undo this."""
    import importlib.util

    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name != "tensorboard" and find(name, *rest)
    )
