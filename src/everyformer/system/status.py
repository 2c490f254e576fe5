"""`status`: a program that is at work for long reports what it is doing.

Code that may take seconds names itself with ``with status("..."):``. Where the program `shows` it,
the innermost name is reported on stderr after four seconds, and then after twice as long each time.
A library call tells nothing.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FIRST, MOST = 4.0, 60.0
"""seconds before the first line, and between two at most"""
_shown = False
_works: list[str] = []
"""works in progress, innermost last"""


def show(shown: bool = True) -> None:
    """Let this process tell what it is doing, or not."""
    global _shown
    _shown = shown


def shows() -> bool:
    """True if it does."""
    return _shown


@contextmanager
def status(what: str) -> Iterator[None]:
    """Name what is done in the block."""
    _works.append(what)
    done = threading.Event()
    if _shown:
        threading.Thread(target=_tell, args=(what, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        _works.remove(what)


def _tell(what: str, done: threading.Event) -> None:
    start, wait = time.monotonic(), FIRST
    while not done.wait(wait):
        if _works[-1:] == [what]:
            wait = min(2 * wait, MOST)
            with suppress(OSError, ValueError):  # nobody can be told
                print(f"{what} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)
