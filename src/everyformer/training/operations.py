"""`Operations`: what a run's steps take, counted now and then and reckoned for all of them."""

import math

from everyformer.data.batch import Batch
from everyformer.training.checkpoint import TrainingState


class Operations:
    """Floating-point operations of a position, forward and backward, by the size of its batch.

    They are counted in the first step of each size, and in steps each a quarter later than the last
    where something is carried on: a memory grows, and with it what a position takes.

    Args:
        state: keeps what was counted.
        carried: whether steps go on from what others left.
        timed: whether steps are only timed. Then counting, which takes time, ends with the first,
            and what it found stands for all sizes.
    """

    def __init__(self, state: TrainingState, *, carried: bool, timed: bool) -> None:
        self._state, self._carried, self._timed = state, carried, timed

    def due(self, batch: Batch) -> bool:
        """True if those of this step are to be counted."""
        known = self._state.flops_per_position
        if self._timed:
            return not known
        step = max(1, self._state.steps)
        later = math.log(step + 1, 1.25) // 1 > math.log(step, 1.25) // 1
        return _size(batch) not in known or (self._carried and later)

    def note(self, batch: Batch, each: float) -> None:
        """Keep what was counted of a step on ``batch``, ``each`` position."""
        self._state.flops_per_position[_size(batch)] = each

    def of(self, batch: Batch, positions: int) -> int:
        """Those of so many positions in a step on ``batch``."""
        known = self._state.flops_per_position
        return round(known.get(_size(batch), next(iter(known.values()))) * positions)


def _size(batch: Batch) -> str:
    """The lengths of a batch's rows, those within 9% of each other alike."""
    sizes = (*batch.inputs.shape[1:], *batch.targets.shape[1:])
    return " ".join(f"{round(8 * math.log2(max(1, size)))}" for size in sizes)
