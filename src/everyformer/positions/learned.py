"""Learned absolute positions: one trained vector a position, added to the embeddings.

    h_0 = E[token] + P[position],      P in R^(max_length x width)

The table fixes the longest sequence; asking beyond it is an error, never a wrap. Rows of unused
positions get no gradient.

Source: Gehring et al. 2017, arXiv 1705.03122; GPT and BERT use it with N(0, 0.02^2) at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount
from everyformer.core.config import Options
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mixer import set_options
from everyformer.core.panels import Pictures
from everyformer.positions import POSITIONS
from everyformer.positions._panels import vectors_and_likeness
from everyformer.positions.base import Position


@dataclass(frozen=True)
class LearnedOptions(Options):
    std: Annotated[Amount, Affects("nothing")] = 0.02
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
        causal: bool = False,
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

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        return {"encodings": lambda: vectors_and_likeness(self, length)}


def resize_grid(table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """A table over the places of a picture, for another resolution: (h w, width) -> (h' w', width).

    Rows are places in raster order, without a class token's. Bicubic between the centres of the
    patches, as Hugging Face's ViT does it; the same grid gives the same table.

    Raises:
        ShapeError: the table has not as many rows as the grid ``before`` has places.
    """
    if len(table) != before[0] * before[1]:
        raise ShapeError(
            f"a table of {len(table)} rows is none over a grid of {before[0]} x {before[1]} places"
        )
    if before == after:
        return table.clone()
    picture = table.T.reshape(1, -1, *before)
    resized = nn.functional.interpolate(picture, after, mode="bicubic", align_corners=False)
    return resized[0].flatten(1).T.contiguous()
