"""`Operations`: what a run's steps take, counted now and then and reckoned for all of them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from everyformer.core.errors import UnsupportedError
from everyformer.data.batch import Batch
from everyformer.training.checkpoint import CheckpointParts, TrainingState
from everyformer.training.optimiser import check_known
from everyformer.training.parallel.world import World
from sequence_laws.flops import flop_counter


class Operations:
    """Floating-point operations of a position, forward and backward, by the size of its batch.

    They are counted in the first step of each size, and in steps each a quarter later than the last
    where something is carried on: a memory grows, and with it what a position takes.

    Args:
        state: keeps what was counted.
        parts: the model, its optimiser, and what steps carry on.
        budget: what the run ends by; flops that nothing counts would never be spent.
        kept: whether a run is kept. Where it is only timed counting, which takes time, ends with
            the first step, and what it found stands for all sizes.
    """

    def __init__(
        self, state: TrainingState, parts: CheckpointParts, world: World, budget: str, kept: bool
    ) -> None:
        self._state, self._parts, self._world = state, parts, world
        self._needed = budget == "flops"
        self._timed = not kept and not self._needed
        self.slowed = False
        """whether the last step was counted, and not as the first of its run"""

    def due(self, batch: Batch) -> bool:
        """True if those of this step are to be counted."""
        known = self._state.flops_per_position
        if self._timed:
            return not known
        step = max(1, self._state.steps)
        later = math.log(step + 1, 1.25) // 1 > math.log(step, 1.25) // 1
        return _size(batch) not in known or (self._parts.carry is not None and later)

    @contextmanager
    def measured(self, batch: Batch) -> Iterator[bool]:
        """Count those of a step on ``batch``, which runs inside, if that is due (given: True).

        Raises:
            PluginError: the step made weights that the optimiser does not know.
            UnsupportedError: there are none, and the budget counts them.
        """
        known, due = self._state.flops_per_position, self.due(batch)
        self.slowed = due and bool(known)
        if not due:
            yield False
            return
        with flop_counter() as counter:
            yield True
        model, optimiser = self._parts.model, self._parts.optimiser
        assert optimiser is not None
        counted, read = self._world.sum([counter.get_total_flops(), positions(model, batch)])
        check_known(model, optimiser)
        if counted == 0 and self._needed:
            raise UnsupportedError(
                "torch counts no operations in this model, so `budget_flops` would never be "
                "spent: give `budget_seconds` or `budget_tokens` instead"
            )
        known[_size(batch)] = counted / read

    def of(self, batch: Batch, positions: int) -> int:
        """Those of so many positions in a step on ``batch``."""
        known = self._state.flops_per_position
        return round(known.get(_size(batch), next(iter(known.values()))) * positions)


def positions(model: nn.Module, batch: Batch) -> int:
    """Positions that a pass over the batch computes, padding included: what speed and budgets of
    tokens count. Of pictures a model says how many it reads, as patches or pixels."""
    read: Any = getattr(model, "positions_read", lambda rows: None)(len(batch.inputs))
    return batch.tokens if read is None else read


def _size(batch: Batch) -> str:
    """The lengths of a batch's rows, those within 9% of each other alike."""
    sizes = (*batch.inputs.shape[1:], *batch.targets.shape[1:])
    return " ".join(f"{round(8 * math.log2(max(1, size)))}" for size in sizes)
