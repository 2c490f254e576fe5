"""Choices: what a mixer decides by an argmax or a sort, so that a second computation repeats it.

A reversible stack computes its layers again from inputs that it has rebuilt, which differ from the
first ones by rounding; an argmax may then fall elsewhere. A mixer passes such decisions through
``choose(lambda: ...)``: the thunk runs unless a recorded choice is being repeated. It draws no
random numbers, since a repetition would then leave the generator elsewhere: draw them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_kept: ContextVar[list[Tensor] | None] = ContextVar("kept", default=None)
_given: ContextVar[Iterator[Tensor] | None] = ContextVar("given", default=None)


def choose(make: Callable[[], Tensor]) -> Tensor:
    """``make()``, kept where `keep_choices` is open; where `repeat_choices` is, the one recorded.

    What is chosen has no gradient. Compiled graphs neither keep nor repeat.
    """
    if torch.compiler.is_compiling():
        return make()
    given, kept = _given.get(), _kept.get()
    made = make() if given is None else next(given)
    if kept is not None:
        kept.append(made)
    return made


@contextmanager
def keep_choices() -> Iterator[list[Tensor]]:
    """The choices made inside, in the order of the calls."""
    kept: list[Tensor] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


@contextmanager
def repeat_choices(choices: Iterable[Tensor]) -> Iterator[None]:
    """Give the mixers inside these ``choices``, one a call in order, instead of their own."""
    token = _given.set(iter(choices))
    try:
        yield
    finally:
        _given.reset(token)
