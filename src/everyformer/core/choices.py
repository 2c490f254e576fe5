"""Choices: what a mixer decides by an argmax or a sort, so that a second computation repeats it.

A reversible stack computes its layers again from inputs that it has rebuilt, which differ from the
first ones by rounding; an argmax may then fall elsewhere. And what a call draws anew, counting its
calls, would be another draw, in checkpoints too. A mixer passes such decisions through
``choose(lambda: ...)``: the thunk runs unless a recorded choice is being repeated. It takes no
numbers from torch's own generator, since a repetition would leave that elsewhere: draw them before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token

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
    choice = make() if given is None else next(given)
    if kept is not None:
        kept.append(choice)
    return choice


@contextmanager
def keep_choices(kept: list[Tensor] | None = None) -> Iterator[list[Tensor]]:
    """The choices made inside, in the order of the calls, behind those in ``kept``."""
    kept = [] if kept is None else kept
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


class Repetition(AbstractContextManager[None]):
    """Gives choices out, from the first on whenever it is entered."""

    def __init__(self, choices: Sequence[Tensor]) -> None:
        self.choices = choices
        self.tokens: list[Token[Iterator[Tensor] | None]] = []

    def __enter__(self) -> None:
        self.tokens.append(_given.set(iter(self.choices)))

    def __exit__(self, *error: object) -> None:
        _given.reset(self.tokens.pop())


def repeat_choices(choices: Sequence[Tensor]) -> Repetition:
    """Give the mixers inside these ``choices``, one a call in order, instead of their own."""
    return Repetition(choices)


def recomputed() -> tuple[AbstractContextManager[list[Tensor]], Repetition]:
    """Around a first computation, and around each that repeats it: what torch's checkpoints ask."""
    kept: list[Tensor] = []
    return keep_choices(kept), repeat_choices(kept)
