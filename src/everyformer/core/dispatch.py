"""Dispatch: of the ways to compute a call, the first that nothing speaks against, reported.

A way is a name and a reason against it; they are tried in order. What is taken is a line of
the log ``everyformer.dispatch`` (level INFO, each once), an entry of an open trace (`Trace.ways`),
and a row of ``everyformer doctor MEMBER``. Where all pairs are computed although fewer are visible,
for want of another way and not because texts are short, it is an `AllPairsWarning` too.

A compiler takes its decisions while it traces, so they are reported then.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

Against = Callable[[], str | None]
"""why a way cannot or should not be taken; None: it is taken"""

_log = logging.getLogger("everyformer.dispatch")
_watchers: list[list[Way]] = []
_logged: set[Way] = set()


class AllPairsWarning(UserWarning):
    """All pairs of tokens are computed, O(L^2), although the member shows fewer."""


class Way(NamedTuple):
    """One way in which something was computed."""

    engine: str
    """kind of call: sparse attention, softmax attention ..."""
    name: str
    why: str = ""
    """what spoke against the ways before it"""


@contextmanager
def watched() -> Iterator[list[Way]]:
    """The ways taken while the block runs, in order."""
    ways: list[Way] = []
    _watchers.append(ways)
    try:
        yield ways
    finally:
        _watchers[:] = [watcher for watcher in _watchers if watcher is not ways]


@contextmanager
def all_pairs_allowed() -> Iterator[None]:
    """A block in which no `AllPairsWarning` is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AllPairsWarning)
        yield


def dispatch(engine: str, ways: Sequence[tuple[str, Against]], last: str) -> str:
    """The name of the first of ``ways`` that nothing speaks against, else ``last``: all pairs."""
    against: list[str] = []
    for name, why in ways:
        reason = why()
        if reason is None:
            take(engine, name, "; ".join(against))
            return name
        if name != last:
            against.append(f"not {name}: {reason}")
    take(engine, last, "; ".join(against), all_pairs=True)
    return last


@torch.compiler.assume_constant_result
def take(engine: str, name: str, why: str = "", all_pairs: bool = False) -> None:
    """Tell that a call goes this way; ``all_pairs``: for want of one that computes fewer."""
    if not (_watchers or all_pairs or _log.isEnabledFor(logging.INFO)):
        return
    way = Way(engine, name, why)
    for ways in _watchers:
        ways.append(way)
    if way not in _logged:
        _logged.add(way)
        _log.info("%s: %s%s", engine, name, f" ({why})" if why else "")
    if all_pairs:
        warnings.warn(
            f"{engine} computes all pairs of tokens, so time and memory grow with the square "
            f"of the length ({why})",
            AllPairsWarning,
            stacklevel=2,
        )
