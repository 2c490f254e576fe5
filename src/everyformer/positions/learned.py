"""Learned absolute positions: one trained vector a position, added to the embeddings.

    h_0 = E[token] + P[position],      P in R^(max_length x width)

The table fixes the longest sequence; asking beyond it is an error, never a wrap. Rows of unused
positions get no gradient.

Source: Gehring et al. 2017, arXiv 1705.03122; GPT and BERT use it with N(0, 0.02^2) at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError
from everyformer.core.mixer import set_options
from everyformer.positions import POSITIONS
from everyformer.positions.base import Position


@dataclass(frozen=True)
class LearnedOptions:
    std: float = 0.02
    """standard deviation of the table at the start (0 starts from zeros)"""


@POSITIONS.register("learned")
class Learned(Position):
    """Adds a trained row a position; needs ``max_length``."""

    name = "learned"
    acts_on = "embeddings"
    Options = LearnedOptions

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        head_dim: int | None = None,
        max_length: int | None = None,
        options: Any = None,
    ) -> None:
        super().__init__()
        if max_length is None:
            raise GeneError(
                "position 'learned' holds a table over positions, so it needs max_length "
                "(the longest sequence): give max_length=..."
            )
        self.max_length = max_length
        self.options: LearnedOptions = set_options(LearnedOptions, self.name, options)
        self.table = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.table, std=self.options.std)
        self.table.no_decay = True  # type: ignore[attr-defined]

    def embed(self, positions: Tensor) -> Tensor:
        self.check(positions)
        return nn.functional.embedding(positions, self.table)
