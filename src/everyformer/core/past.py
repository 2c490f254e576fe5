"""The past of a text whose parts several processes read at once.

A state that is a sum over the past need not be waited for: each process sums up its own part, all
of them exchange these sums once, and what came before part r is

    past_r = given . part_0 . part_1 ... part_(r-1)                (`State.followed_by`)

A mixer with such a state asks for it as soon as it has its keys and values; who trains with parts
answers (`answered_by`). Where nobody does, and in a compiled graph, the past is the state that was
given.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch

from everyformer.core.state import S


class Answer(Protocol):
    """Who knows what came before the part of a text that this process reads."""

    def __call__(self, given: S, part: Callable[[], S]) -> S:
        """The past, from the state ``given`` before the whole text and this process's ``part``."""


_answer: ContextVar[Answer | None] = ContextVar("answer", default=None)


@contextmanager
def answered_by(answer: Answer) -> Iterator[None]:
    """In the block `past` is what ``answer`` says."""
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def past(given: S, part: Callable[[], S]) -> S:
    """The state that tokens go on from.

    Args:
        given: the state that was handed to the mixer.
        part: makes the state after these tokens, of ``given``, without their outputs.
    """
    if torch.compiler.is_compiling() or (answer := _answer.get()) is None:
        return given
    return answer(given, part)
