"""`Depth`: how often, and in which order, the blocks of a stack are applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everyformer.core.gene import NoOptions
from everyformer.core.trials import Trials


class Depth:
    """Base of all depths; one serves a whole stack."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def order(self, blocks: int) -> Sequence[int]:
        """Which of so many blocks is applied at each step, counted from 0.

        States, wanted outputs and losses are counted by step; weights, positions and what is read
        of an encoder belong to the block.
        """
        raise NotImplementedError
