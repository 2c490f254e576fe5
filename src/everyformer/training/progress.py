"""Progress of a run, for people: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 10.0


class Progress:
    """Loss, speed and time left, on stderr.

    Args:
        label: said first, the run's name.
        begun: share of the budget already spent, from an earlier sitting.
        show: False says nothing at all.
    """

    def __init__(self, label: str, begun: float = 0.0, *, show: bool = True) -> None:
        self._label, self._show = label, show
        self._begun, self._done = begun, begun
        self._start = self._said = time.perf_counter()
        self._bar: tqdm[Any] | None = None
        if show and sys.stderr.isatty():
            form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self._bar = tqdm(total=1.0, initial=begun, desc=label, bar_format=form, leave=False)

    def update(self, done: float, step: int, loss: float, speed: float) -> None:
        """Tell how far the run is.

        Args:
            done: share of the budget spent. step: steps taken. loss: of the last step, in nats.
            speed: token positions a second.
        """
        if self._bar is not None:
            self._bar.set_postfix_str(f"step {step}, loss {loss:.4f}, {speed:,.0f} tokens/s")
            self._bar.update(min(done, 1.0) - self._done)
        elif time.perf_counter() - self._said > LINE_SECONDS:
            self._said = time.perf_counter()
            left = self._left(done)
            self.say(
                f"{done:4.0%}  step {step}  loss {loss:.4f}  {speed:,.0f} tokens/s  {left} left"
            )
        self._done = min(done, 1.0)

    def say(self, text: str) -> None:
        """Print one line, above the bar if there is one."""
        if self._show:
            line = f"{self._label}: {text}"
            if self._bar is not None:
                self._bar.write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def _left(self, done: float) -> str:
        spent = time.perf_counter() - self._start
        if done <= self._begun:
            return "?"
        seconds = max(0.0, spent / (done - self._begun) * (1 - done))
        return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
