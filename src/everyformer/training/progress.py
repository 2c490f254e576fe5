"""Progress of a run, for people: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 4.5
"""between two lines, less the steps that end in between"""


@dataclass(frozen=True)
class Part:
    """The share that a run is of a larger work."""

    number: int
    """of the run, from 1 on"""
    of: int
    """how many runs there are"""
    begin: float
    """share of the work that is done before"""
    end: float
    """the same after it"""
    after: float
    """seconds that will be left then"""


class Progress:
    """Loss, speed and time left, on stderr.

    Args:
        label: printed first, the run's name.
        start: share of the budget already spent, from an earlier session.
        part: the larger work, if there is one, whose progress is shown too.
        show: False says nothing at all.
    """

    def __init__(
        self, label: str, start: float = 0.0, *, part: Part | None = None, show: bool = True
    ) -> None:
        self._label = label if part is None else f"[{part.number} of {part.of}] {label}"
        self._show, self._part = show, part
        self._first, self._done = start, start
        self._start = self._said = time.perf_counter()
        self._bar: tqdm[Any] | None = None
        if show and sys.stderr.isatty():
            form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self._bar = tqdm(
                total=1.0, initial=start, desc=self._label, bar_format=form, leave=False
            )

    def update(self, done: float, step: int, loss: float, speed: float | None) -> None:
        """Tell how far the run is, if it is time to.

        Args:
            done: share of the budget spent. step: steps taken. loss: of the last step, in nats.
            speed: token positions a second; None before it is known.
        """
        done = min(done, 1.0)
        pace = "" if speed is None else f", {speed:,.0f} tokens/s"
        came = f"loss {loss:.4f}"
        if self._bar is not None:
            self._bar.set_postfix_str(f"step {step}, {came}{pace}", refresh=False)
            self._bar.update(done - self._done)
        elif time.perf_counter() - self._said > LINE_SECONDS:
            left = self._left(done)
            text = f"{done:4.0%}  step {step}, {came}{pace}, {_minutes(left)} left"
            if self._part is not None:
                part = self._part
                whole = part.begin + done * (part.end - part.begin)
                in_all = None if left is None else left + part.after
                text += f"; of all {whole:.0%}, {_minutes(in_all)} left"
            self.say(text)
        self._done = done

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if not self._show:
            return
        self._said = time.perf_counter()
        line = f"{self._label}: {text}"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _left(self, done: float) -> float | None:
        """Seconds until the budget is spent; None before that can be said."""
        if done <= self._first:
            return None
        spent = time.perf_counter() - self._start
        return spent / (done - self._first) * (1 - done)


def _minutes(seconds: float | None) -> str:
    return "?" if seconds is None else f"{int(seconds // 60)}:{int(seconds % 60):02d}"
