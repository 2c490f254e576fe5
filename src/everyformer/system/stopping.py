"""Ctrl-C and SIGTERM: the one place that answers them, whatever the process is doing.

Work that can stop between two steps asks for that with `Gentle`; everything else ends at once, by
an exception that lets go of files and children on its way. Python runs a handler only between two
of its own instructions, and an exception may get lost in an import or in a library. So the command
line also has a thread, which the system wakes at once: it tells the user what happens, and ends the
process if that is not over within `GRACE`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

GRACE = 1.0
"""seconds between a signal and the end of a process that has not ended by itself"""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ended what was going on; ``number`` says which."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {name}")
        self.number = number


class Gentle:
    """Context manager for work that stops between steps; ``received`` is the number of the signal
    that asked for a stop, or None.

    A second Ctrl-C stops at once. Signals can only be caught in the main thread; in another one
    nothing is ever received. ``what`` tells the user what happens now.
    """

    def __init__(self, what: str = "stopping after this step, with a checkpoint") -> None:
        self._messages = [f"\n{what}; press Ctrl-C again to stop at once\n"]
        self.received: int | None = None
        self.seen: set[str] = set()
        """who has taken note of a signal: handler, thread or both"""
        self._own: Guard | None = None
        self._outer: Gentle | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if Guard.active is None:
                self._own = Guard().__enter__()
            assert Guard.active is not None
            self._outer, Guard.active.work = Guard.active.work, self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if Guard.active is not None and Guard.active.work is self:
            Guard.active.work, Guard.active.former = self._outer, self
        if self._own is not None:
            self._own.__exit__(kind, error, traceback)

    def ask(self, number: int) -> None:
        """Take note of the signal and tell the user, once."""
        if self.received is None:
            self.received = number
        with suppress(IndexError):  # the other of thread and handler was here before
            say(self._messages.pop())


class Guard:
    """Context manager that answers the signals of this process.

    Args:
        watch: for programs alone: a thread tells and ends, and stays until the process has ended.
    """

    active: Guard | None = None

    def __init__(self, watch: bool = False) -> None:
        self.work: Gentle | None = None
        self.former: Gentle | None = None
        """the work before, of whose signal handler or thread may have yet to hear"""
        self._watch = watch
        self._urgent: int | None = None
        self._raised = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and Guard.active is None:
            Guard.active = self
            if self._watch:
                wake, woken = os.pipe()
                os.set_blocking(woken, False)
                threading.Thread(target=self._wait, args=(wake,), daemon=True).start()
                signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watch or Guard.active is not self:
            self._raised = True  # the process ends: nothing more is to be interrupted
            if self._urgent is not None:
                # the interpreter would put back the system's own handlers before its very end
                for number in self._previous:
                    signal.signal(number, signal.SIG_IGN)
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        Guard.active = None

    def _ends(self, number: int, observer: str) -> bool:
        """True if a signal ends everything, False if it asks the work that is going on.

        Handler and thread both see every signal, in any order and quick ones as one, so each counts
        for itself.
        """
        work = self.work
        if work is None:
            late = self.former
            if late is None or not late.seen or observer in late.seen:
                return True
            late.seen.add(observer)
            return False
        if observer in work.seen:
            return number == signal.SIGINT
        work.seen.add(observer)
        work.ask(number)
        return False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._urgent is None and self._ends(number, "handler"):
            self._urgent = number
        if self._urgent is not None and not self._raised:
            self._raised = True
            raise Stopped(self._urgent)

    def _wait(self, wake: int) -> None:
        """The thread's loop: answer each signal, and end the process when one must end it."""
        while True:
            for number in os.read(wake, 64):
                if number in SIGNALS and self._ends(number, "thread"):
                    self._urgent = self._urgent or number
                    threading.Event().wait(GRACE)
                    end_now(self._urgent)


def end_now(number: int) -> None:
    """End the process without asking it, its children and its unfinished files with it."""
    if "multiprocessing" in sys.modules:
        import multiprocessing

        for child in multiprocessing.active_children():
            child.kill()
    if "everyformer.system.files" in sys.modules:
        from everyformer.system.files import abandon

        abandon()
    say(f"everyformer: {Stopped(number)}\n")
    os._exit(128 + number)


def say(text: str) -> None:
    """Write to stderr, past its buffer, which the signal may have found half-written."""
    with suppress(OSError):
        os.write(2, text.encode())
