"""`Speed`: what the steps of one session took, without the first, and what those since a report."""

from everyformer.training.checkpoint import TrainingState
from everyformer.training.result import Timed


class Speed:
    """Tokens and seconds of a session that began at ``state``.

    Args:
        warm_up: first steps that are not counted: memory is claimed and code compiled.
    """

    def __init__(self, state: TrainingState, warm_up: int) -> None:
        self.state, self.warm_up = state, warm_up
        self.first = state.steps
        self.left_out = 0
        """first steps that were not counted, in the end"""
        self.reported: float | None = None
        """tokens a second between the last two reports"""
        self._cpu_seconds = 0.0
        self._counting = (0, 0.0)
        """tokens and seconds of the steps in which operations were counted, too"""
        self._counted_from = self._reported_at = self._now()

    def stepped(self, cpu_seconds: float, ended: bool) -> None:
        """One step has been counted in the state; with the last one left out counting starts over,
        unless training has ``ended``."""
        self._cpu_seconds += cpu_seconds
        if self.state.steps - self.first == self.warm_up and not ended:
            self._counted_from, self.left_out = self._now(), self.warm_up
            self._cpu_seconds = 0.0

    def leave_out(self, tokens: int, seconds: float) -> None:
        """Leave out a step that took longer, since its operations were counted."""
        self._counting = (self._counting[0] + tokens, self._counting[1] + seconds)

    def report(self) -> float:
        """Tokens a second since the last report."""
        before, self._reported_at = self._reported_at, self._now()
        self.reported = _between(before, self._reported_at) or self.reported or 0.0
        return self.reported

    @property
    def tokens_per_second(self) -> float:
        """Of all steps that are counted; of all there were where none are."""
        everything = self.state.tokens, self.state.seconds
        return _between(self._counted_from, self._now()) or _between(self._counted_from, everything)

    @property
    def timed(self) -> Timed | None:
        """Steps that are counted and their time; None where there are none."""
        steps = self.state.steps - self.first - self.left_out
        if steps == 0:
            return None
        return Timed(steps, self.state.seconds - self._counted_from[1], self._cpu_seconds)

    def _now(self) -> tuple[int, float]:
        tokens, seconds = self._counting
        return self.state.tokens - tokens, self.state.seconds - seconds


def _between(before: tuple[int, float], after: tuple[int, float]) -> float:
    tokens, seconds = after[0] - before[0], after[1] - before[1]
    return tokens / seconds if seconds > 0 else 0.0
