"""Choices: what a mixer decides by an argmax or a sort, so that a second computation repeats it.

A reversible stack computes its layers again from inputs that it has rebuilt, which differ from the
first ones by rounding; an argmax may then fall elsewhere. And what a call draws again, counting its
calls, would be another draw, in checkpoints too. A mixer passes such decisions through
``choose(lambda: ...)``: the thunk runs unless a recorded choice is being repeated. It takes no
numbers from torch's own generator, since a repetition would leave that elsewhere: draw them before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token

import torch
from torch import Tensor

_recording: ContextVar[list[Tensor] | None] = ContextVar("recording", default=None)
_replaying: ContextVar[Iterator[Tensor] | None] = ContextVar("replaying", default=None)


def choose(make: Callable[[], Tensor]) -> Tensor:
    """``make()``, recorded inside `keep_choices`; inside `repeat_choices` the recorded one.

    What is chosen has no gradient. Compiled graphs neither keep nor repeat.
    """
    if torch.compiler.is_compiling():
        return make()
    replayed, recorded = _replaying.get(), _recording.get()
    choice = make() if replayed is None else next(replayed)
    if recorded is not None:
        recorded.append(choice)
    return choice


@contextmanager
def keep_choices(recorded: list[Tensor] | None = None) -> Iterator[list[Tensor]]:
    """The choices made inside, in the order of the calls, after those in ``recorded``."""
    recorded = [] if recorded is None else recorded
    token = _recording.set(recorded)
    try:
        yield recorded
    finally:
        _recording.reset(token)


class repeat_choices(AbstractContextManager[None]):
    """Give the mixers inside these ``choices``, one a call in order, instead of new ones: from the
    first on whenever it is entered."""

    def __init__(self, choices: Sequence[Tensor]) -> None:
        self.choices = choices
        self.tokens: list[Token[Iterator[Tensor] | None]] = []

    def __enter__(self) -> None:
        self.tokens.append(_replaying.set(iter(self.choices)))

    def __exit__(self, *error: object) -> None:
        _replaying.reset(self.tokens.pop())


def recomputed() -> tuple[AbstractContextManager[list[Tensor]], repeat_choices]:
    """Around a first computation, and around each that repeats it: what torch's checkpoints ask."""
    recorded: list[Tensor] = []
    return keep_choices(recorded), repeat_choices(recorded)
