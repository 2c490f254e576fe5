"""`Retrieval`: what a language model looks up in a store of its training text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from everyformer.core.bounds import Affects, Count, Several
from everyformer.core.config import NoOptions, Options
from everyformer.core.trials import Trials
from everyformer.genes.config import ModelConfig
from everyformer.retrieval.options import Kind


@dataclass(frozen=True)
class StoreOptions(Options):
    """What all say of the store that a run makes of its training text."""

    size: Annotated[Count, Affects("results")] = 65_536
    """tokens of the training text that are stored: stretches of it, at equal distances"""
    context: Annotated[Several | None, Affects("results")] = None
    """tokens of the windows in which the text is read for keys (default: --data.length); they
    overlap by half, so that a key knows at least half a window"""
    tap: Annotated[str, Affects("results")] = "ffn-input:-1"
    """what of the model a key is: ffn-input, attention-output or block-output, and a layer"""
    kind: Annotated[Kind, Affects("results")] = "auto"
    """how neighbours are found: see `everyformer index --help`"""


class Reads(nn.Module):
    """What a model with neighbours makes of its last states before the output layer."""

    def forward(self, h: Tensor, neighbours: Tensor, table: Tensor) -> Tensor:
        """The states that the output layer reads.

        Args:
            h: (B, L, d). neighbours: (B, L, k) int64 tokens, -1 where there are fewer.
            table: (V, d), the output layer's weight.
        """
        raise NotImplementedError


class Retrieval:
    """Base of all; one serves a whole model."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    learned_without: ClassVar[Mapping[str, Any]] = {}
    """options with which a model that was trained without neighbours begins as it was"""
    beside: ClassVar[str]
    """what a run has beside its training and the times of a comparison leave out, in words"""
    companion: ClassVar[str]
    """module of `everyformer.datastores` that trains and opens runs of it (see
    `everyformer.datastores.runs.Companion`)"""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def check(self, plan: ModelConfig) -> None:
        """Refuse what contradicts the other genes.

        Raises:
            GeneError: what clashes with what, and why.
        """

    def make_part(self, width: int) -> Reads | None:
        """What of it is in the model, with its weights; None: nothing."""
        return None
