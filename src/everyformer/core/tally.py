"""Tallies: what parts of a model say of the tokens that they have read, as means over many calls.

A part calls ``tally("depth", ...)`` with a sum and a count; nothing is computed unless a tally is
open. An evaluation opens one, and reports `MEANS` of it with its losses.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from everyformer.core.measures import MEANS


class Tally:
    """Sums and counts by name."""

    def __init__(self) -> None:
        self.sums = torch.zeros(len(MEANS), 2, dtype=torch.float64)

    def means(self) -> dict[str, float]:
        """Means of all sums, by the names in `MEANS`."""
        pairs = zip(MEANS.values(), self.sums.tolist(), strict=True)
        return {mean.name: total / count for mean, (total, count) in pairs if count}


_open: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Add up what the models that run inside tell."""
    opened = Tally()
    token = _open.set(opened)
    try:
        yield opened
    finally:
        _open.reset(token)


def tally(name: str, tell: Callable[[], tuple[Tensor, Tensor]]) -> None:
    """Tell a sum over tokens and their number, under a name of `MEANS`."""
    opened = None if torch.compiler.is_compiling() else _open.get()
    if opened is not None:
        pair = torch.stack([part.detach().cpu().double() for part in tell()])
        opened.sums[list(MEANS).index(name)] += pair
