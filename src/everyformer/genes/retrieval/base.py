"""`Retrieval`: the use that a language model makes of a store of its training text."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from everyformer.core.config import NoOptions
from everyformer.core.trials import Trials
from everyformer.genes.config import ModelConfig


class Retrieval:
    """Base of all; one serves a whole model."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    learned_without: ClassVar[Mapping[str, Any]] = {}
    """options with which a model that was trained without neighbours begins as it was"""
    cost: ClassVar[str]
    """what a run has beside its training and the times of a comparison leave out, in words"""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def check(self, plan: ModelConfig) -> None:
        """Refuse what contradicts the other genes.

        Raises:
            GeneError: what clashes with what, and why.
        """

    def make_part(self, width: int) -> nn.Module | None:
        """The part of it that is in the model, with its weights; None: nothing.

        A part is called with the last states h (B, L, d), the neighbours (B, L, k) int64 as tokens,
        -1 where there are fewer, and the output layer's weight (V, d); it returns the states
        (B, L, d) that the output layer reads.
        """
        return None
