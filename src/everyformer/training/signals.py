"""Ctrl-C and SIGTERM ask for a stop after the step; a second Ctrl-C stops at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

STEP = "stopping after this step, with a checkpoint"


class StopSignals:
    """Context manager; ``received`` is the number of the signal that asked for a stop, or None.

    Signals can only be caught in the main thread; in another one nothing is ever received. ``what``
    tells the user what happens now.
    """

    def __init__(self, what: str = STEP) -> None:
        self._told = f"\n{what}; press Ctrl-C again to stop at once\n".encode()
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            # print() could re-enter a buffer that the signal found half-written
            os.write(2, self._told)
        self.received = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
