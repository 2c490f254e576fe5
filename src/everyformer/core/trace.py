"""Recording of attention weights and the like: `with trace(model) as t:` keeps what mixers offer.

A mixer calls ``record(self, "weights", lambda: ...)``; the thunk runs only while a trace that
contains this module is open, so an untraced model pays one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from everyformer.core.dispatch import Way, watched

_open: list[Trace] = []


class Trace:
    """Recorded tensors by module path and name; each is a list, one entry a call."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self.records: dict[str, dict[str, list[Tensor]]] = {}
        self.ways: list[Way] = []
        """how what ran was computed, in order (`everyformer.core.dispatch`)"""

    def __getitem__(self, path: str) -> dict[str, list[Tensor]]:
        return self.records[path]

    def find(self, name: str) -> dict[str, Tensor]:
        """The last tensor called ``name`` of every module that recorded one, by module path."""
        return {path: named[name][-1] for path, named in self.records.items() if name in named}

    def add(self, module: nn.Module, name: str, make: Callable[[], Tensor]) -> None:
        """Keep ``make()`` if the module belongs to the traced model."""
        path = self._paths.get(id(module))
        if path is not None:
            self.records.setdefault(path, {}).setdefault(name, []).append(make().detach())


@contextmanager
def trace(model: nn.Module) -> Iterator[Trace]:
    """Record what the modules of ``model`` offer while the block runs."""
    opened = Trace(model)
    _open.append(opened)
    with watched() as opened.ways:
        try:
            yield opened
        finally:
            _open.remove(opened)


@contextmanager
def untraced() -> Iterator[None]:
    """Pause of all traces: what runs inside is a recomputation."""
    paused = _open.copy()
    _open.clear()
    try:
        yield
    finally:
        _open.extend(paused)


def tracing() -> bool:
    """True if any trace is open (a mixer may take a slower path that can be looked into)."""
    return bool(_open)


def record(module: nn.Module, name: str, make: Callable[[], Tensor]) -> None:
    """Record ``make()`` of a module under a name; it is called only while a trace is open."""
    for opened in _open:
        opened.add(module, name, make)
