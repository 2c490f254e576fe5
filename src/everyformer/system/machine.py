"""Facts of the machine that its system tells: cores, and how many want them."""

import os
import statistics
import threading
from pathlib import Path
from typing import Self


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_averages() -> tuple[float, float, float] | None:
    """Processes that ran or were ready to, means over 1, 5 and 15 minutes; None: not known."""
    try:
        return os.getloadavg()
    except (OSError, AttributeError):
        return None


def running() -> int | None:
    """Threads of all processes that run or wait for a core, but the one that asks; None where the
    system does not say (elsewhere than on Linux)."""
    try:
        text = Path("/proc/loadavg").read_text(encoding="ascii")
    except OSError:
        return None
    return max(0, int(text.split()[3].partition("/")[0]) - 1)


class LoadMeter:
    """Context manager that counts, twice a second, how many threads want a core."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._pause = seconds
        self._counts: list[int] = []
        self._end = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()

    @property
    def mean(self) -> float | None:
        """So far; None where it is not known."""
        return statistics.mean(self._counts) if self._counts else None

    def _run(self) -> None:
        while not self._end.wait(self._pause):
            count = running()
            if count is not None:
                self._counts.append(count)
