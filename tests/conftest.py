"""One thread a test process: two pytest workers share two cores, and torch's threads spin."""

import sys
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No mixers of one's own are known before, nor after."""
    from everyformer import family
    from everyformer.core import plugins as own
    from everyformer.genes.mixers import MIXERS

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own, "_here", {})
    monkeypatch.setattr(family, "_rows", {})
    monkeypatch.setenv(own.VARIABLE, "")
    family._known.cache_clear()
    yield
    own._load.cache_clear()
    family._known.cache_clear()
    for name, cls in list(MIXERS._entries.items()):
        if not cls.__module__.startswith("everyformer."):
            MIXERS._entries.pop(name)
