"""`Pulse`: a program that is at work for long without a word says what it is doing.

Code that may take seconds names itself with ``with doing("..."):``. A program that shows its work
runs in a `Pulse`: whenever `SILENCE` seconds have gone by since something was `said`, it tells the
innermost of these names and for how long that has been going on; on a terminal in one line that
the next word replaces. Without a pulse, as in a library call, nothing is told. A process that a
program starts shares the moment of the last word with it (`Pulse.lend`), so that there is no
silence between their words either.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, Self

SILENCE = 4.25
"""seconds; with those of two looks less than five"""
_LOOK = 0.25
"""seconds between two looks at the clock"""
CLEAR = "\r\x1b[K"
"""what takes a line off a terminal"""
_works: list[tuple[str, float]] = []
"""works in progress, innermost last, each with its start"""


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Name what is done in the block."""
    work = (what, time.monotonic())
    _works.append(work)
    try:
        yield
    finally:
        _works.remove(work)


def said() -> None:
    """Note that something is about to be said, so that there is no silence."""
    if Pulse.active is not None:
        Pulse.active.rest()


class Pulse:
    """Context manager of a program that is never silent for long.

    Args:
        what: the program does, while nothing else is named.
        spoken: its ``value`` is when this program, or the one that started it, spoke last (`lend`).
    """

    active: ClassVar[Pulse | None] = None

    def __init__(self, what: str, spoken: Any = None) -> None:
        self._what, self._start = what, time.monotonic()
        self._started = spoken is not None
        self._spoken = spoken or SimpleNamespace(value=self._start)
        self._patience = 0.0
        """seconds more of silence, in which another process may speak first"""
        self._line: float | None = None
        """when the line was written that is on the terminal until the next word"""
        self._end, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> Self:
        Pulse.active = self
        if self._started and sys.stderr.isatty():
            _write(CLEAR)  # the line of the other program
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        # an end is no word: what was silent before it goes on being silent
        with self._lock:
            self._clear()
        Pulse.active = None

    def rest(self) -> None:
        """Begin to wait anew, and take the line off the terminal."""
        with self._lock:
            self._clear()
            self._spoken.value = time.monotonic()

    @contextmanager
    def lend(self) -> Iterator[Any]:
        """The moment of the last word for the `Pulse` of a process that is started in the block,
        which speaks first."""
        from multiprocessing.sharedctypes import RawValue

        alone = self._spoken
        self._spoken, self._patience = RawValue("d", alone.value), _LOOK
        try:
            yield self._spoken
        finally:
            alone.value = self._spoken.value
            self._spoken, self._patience = alone, 0.0

    @property
    def _shows(self) -> bool:
        """True if our line is still there, since nobody has spoken after it."""
        return self._line is not None and self._line == self._spoken.value

    def _clear(self) -> None:
        if self._shows:
            _write(CLEAR)
        self._line = None

    def _run(self) -> None:
        while not self._end.wait(_LOOK):
            with self._lock:
                silence = time.monotonic() - self._spoken.value
                if self._end.is_set():
                    return
                if silence >= (_LOOK if self._shows else SILENCE + self._patience):
                    self._tell(time.monotonic())

    def _tell(self, now: float) -> None:
        what, since = _works[-1] if _works else (self._what, self._start)
        text = f"{what} ({now - since:.0f} s)" if now - since >= 1 else what
        self._spoken.value = now
        if sys.stderr.isatty():
            _write(f"\r{text}\x1b[K")
            self._line = now
        else:
            _write(text + "\n")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody can be told
        pass
