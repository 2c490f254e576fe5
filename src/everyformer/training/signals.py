"""Ctrl-C and SIGTERM ask for a stop after the step; a second Ctrl-C stops at once."""

from __future__ import annotations

from everyformer.core.stopping import Gentle

STEP = "stopping after this step, with a checkpoint"


class StopSignals(Gentle):
    """`Gentle`, of work in steps; its message is that of training unless another is given."""

    def __init__(self, what: str = STEP) -> None:
        super().__init__(what)
