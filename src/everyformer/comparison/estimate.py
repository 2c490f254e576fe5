"""`Estimate`: how long a comparison will take, corrected by what its parts really took."""

from __future__ import annotations

import math

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.plan import Entrant, Job
from everyformer.comparison.results import Calibrated
from everyformer.core.tasks import TASKS
from everyformer.training.config import TrainingConfig
from everyformer.training.progress import Part

START = 0.5
"""seconds until a process that trains takes its first step"""
EVALUATION = 0.4
"""of a training step: time of an evaluation's pass over as many sequences"""
WRITING = 2.0
"""seconds that decoding speed and a sample take"""
TIMING = 1.0
"""seconds of a member's layer at one length"""
PAGE = 3.0
"""seconds of the report"""


class Estimate:
    """Seconds of every training of a comparison, and of what comes after.

    It also numbers the trainings, and keeps what they really took.
    """

    def __init__(
        self, config: CompareConfig, ready: list[Entrant], calibrated: dict[str, Calibrated]
    ) -> None:
        able = [entrant for entrant in ready if entrant.config is not None]
        # of the grid, the rate that is kept is also that of the first seed
        each = config.seeds + max(len(config.lr_grid) - 1, 0)
        timing = len(config.bench_lengths) * TIMING
        self._each = {
            entrant.member: timing / each + _training_seconds(config.training, entrant, calibrated)
            for entrant in able
        }
        self.trainings = each * len(able)
        self.seconds = each * sum(self._each.values()) + timing + PAGE
        self._done: dict[str, float] = {}
        """trainings that are over, with what was estimated of them"""
        self._expected = self._spent = 0.0
        """seconds of those that were run in this sitting"""

    def part(self, planned: Job) -> Part:
        """What a training is of the whole."""
        done, own = sum(self._done.values()), self._each[planned.member]
        pace = self._spent / self._expected if self._expected else 1.0
        return Part(
            number=len(self._done) + 1,
            of=self.trainings,
            begin=done / self.seconds,
            end=(done + own) / self.seconds,
            after=(self.seconds - done - own) * pace,
        )

    def over(self, planned: Job, seconds: float | None = None) -> None:
        """Note that a training need not be done again, and how long it took in this sitting."""
        expected = self._done[planned.folder] = self._each[planned.member]
        if seconds is not None:
            self._expected += expected
            self._spent += seconds


def _training_seconds(
    config: TrainingConfig, entrant: Entrant, calibrated: dict[str, Calibrated]
) -> float:
    """Of one training in its process; only what its budget says where it could not be timed."""
    known = calibrated.get(entrant.member)
    assert entrant.config is not None
    beside = START + (WRITING if TASKS[entrant.config.task].continues else 0.0)
    if known is None:
        return beside + (config.budget_seconds or 0.0)
    evaluations = 1 + (known["steps"] // config.evaluate_every if config.evaluate_every else 0)
    passes = math.ceil((config.evaluate_sequences or 256) / config.batch)
    return beside + known["seconds"] * (known["steps"] + EVALUATION * passes * evaluations)
