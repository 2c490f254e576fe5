"""`Pulse`: a program that is at work for long without a word says what it is doing.

Code that may take seconds names itself with ``with doing("..."):``. A program that shows its work
runs in a `Pulse`: whenever `SILENCE` seconds have gone by since something was `said`, it tells the
innermost of these names and for how long that has been going on; on a terminal in one line that
the next word replaces. Without a pulse, as in a library call, nothing is told.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

SILENCE = 4.5
"""seconds; with those between two looks less than five"""
_LOOK = 0.25
"""seconds between two looks at the clock"""
_works: list[tuple[str, float]] = []
"""what is being done, innermost last, and since when"""


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
    """

    active: ClassVar[Pulse | None] = None

    def __init__(self, what: str) -> None:
        self._what = what
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._last = self._start = time.monotonic()
        self._line = False
        """whether a line is on the terminal that the next word replaces"""

    def __enter__(self) -> Self:
        Pulse.active = self
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self.rest()
        Pulse.active = None

    def rest(self) -> None:
        """Begin to wait anew, and take the line off the terminal."""
        with self._lock:
            self._last = time.monotonic()
            if self._line:
                self._line = False
                _write("\r\x1b[K")

    def _run(self) -> None:
        while not self._end.wait(_LOOK):
            now = time.monotonic()
            with self._lock:
                if now - self._last >= (_LOOK if self._line else SILENCE):
                    self._tell(now)

    def _tell(self, now: float) -> None:
        what, since = _works[-1] if _works else (self._what, self._start)
        text = f"{what} ({now - since:.0f} s)" if now - since >= 1 else what
        if sys.stderr.isatty():
            _write(f"\r{text}\x1b[K")
            self._line = True
        else:
            _write(text + "\n")
            self._last = now


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody can be told
        pass
