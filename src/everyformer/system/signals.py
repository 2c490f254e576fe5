"""Ctrl-C and SIGTERM: work in steps stops after a step, everything else by an exception.

Either signal raises `Stopped`, so that files and children are let go of on the way (`stoppable`,
around a program). Within a `GracefulStop` the first one only asks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], Any]


class Stopped(KeyboardInterrupt):
    """A signal ended what was going on; ``number`` says which."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {name}")
        self.number = number


class GracefulStop:
    """Context manager for work that stops between steps; ``received`` is the number of the signal
    that requested a stop, or None.

    A second Ctrl-C raises `Stopped`. Signals can only be caught in the main thread; in another one
    nothing is ever received.

    Args:
        what: reported as what happens now.
    """

    def __init__(self, what: str = "stopping after this step, with a checkpoint") -> None:
        self._what = what
        self.received: int | None = None
        self._handled: Any = None

    def __enter__(self) -> Self:
        self._handled = handled(self._note)
        self._handled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handled.__exit__(*error)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            # past the buffer, which the signal may have found half-written
            with suppress(OSError):
                os.write(2, f"\n{self._what}; press Ctrl-C again to stop at once\n".encode())
        elif number == signal.SIGINT:
            raise Stopped(number)


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """A block whose signals ``handler`` answers, where it is in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def stoppable() -> Iterator[None]:
    """A program, which the first signal ends; it lets go of what it holds undisturbed."""
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:
            ended = True
            raise Stopped(number)

    with handled(end):
        yield
