"""`Pulse`: a program that is at work for long without a word says what it is doing.

Code that may take seconds names itself with ``with doing("..."):``. A program that shows its work
runs in a `Pulse`: whenever `SILENCE` seconds have gone by since something was `said`, it tells the
innermost of these names and for how long that has been going on; on a terminal in one line that
the next word replaces. Without a pulse, as in a library call, nothing is told. A process that a
program starts shares the moment of the last word with it (`Pulse.lend`), so that there is no
silence between their words either.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

SILENCE = 4.25
"""seconds; with those of two looks less than five"""
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
        shared: descriptor of the file that holds when the program that started this one, or this
            one, spoke last; lent by that program.
    """

    active: ClassVar[Pulse | None] = None

    def __init__(self, what: str, shared: int | None = None) -> None:
        self._what, self._shared = what, shared
        self._lent = False
        """whether another process speaks first"""
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._last = self._start = time.monotonic()
        self._line = False
        """whether a line is on the terminal that the next word replaces"""
        if shared is not None:
            self._last = 0.0
            self._listen()

    def __enter__(self) -> Self:
        Pulse.active = self
        if self._shared is not None and sys.stderr.isatty():
            _write("\r\x1b[K")  # what the other program has on the terminal
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
            self._note(time.monotonic())
            self._clear()

    def _clear(self) -> None:
        if self._line:
            self._line = False
            _write("\r\x1b[K")

    @contextmanager
    def lend(self) -> Iterator[int]:
        """A descriptor for the `Pulse` of a process that is started, which speaks first."""
        with tempfile.TemporaryFile() as file:
            with self._lock:
                self._shared, self._lent = file.fileno(), True
                self._note(self._last)
            try:
                yield file.fileno()
            finally:
                with self._lock:
                    self._listen()
                    self._shared, self._lent = None, False

    def _note(self, moment: float) -> None:
        self._last = moment
        if self._shared is not None:
            os.pwrite(self._shared, struct.pack("d", moment), 0)

    def _listen(self) -> None:
        """Take over when the other process spoke; its word has replaced ours."""
        if self._shared is not None:
            (other,) = struct.unpack("d", os.pread(self._shared, 8, 0))
            if other > self._last:
                self._last, self._line = other, False

    def _run(self) -> None:
        while not self._end.wait(_LOOK):
            now = time.monotonic()
            with self._lock:
                self._listen()
                silence = SILENCE + _LOOK if self._lent else SILENCE
                if now - self._last >= (_LOOK if self._line else silence):
                    self._tell(now)

    def _tell(self, now: float) -> None:
        what, since = _works[-1] if _works else (self._what, self._start)
        text = f"{what} ({now - since:.0f} s)" if now - since >= 1 else what
        if sys.stderr.isatty():
            _write(f"\r{text}\x1b[K")
            self._line = True
        else:
            _write(text + "\n")
        self._note(now)


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody can be told
        pass
