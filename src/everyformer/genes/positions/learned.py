"""Learned absolute positions: one trained vector a position, added to the embeddings.

    h_0 = E[token] + P[position],      P in R^(max_length x width)

The table fixes the longest sequence; asking beyond it is an error, never a wrap. Rows of unused
positions get no gradient.

Source: Gehring et al. 2017, arXiv 1705.03122; GPT and BERT use it with N(0, 0.02^2) at the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount
from everyformer.core.config import Options
from everyformer.core.errors import ShapeError
from everyformer.core.panels import Pictures
from everyformer.core.position import Position
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions._tables import TablePosition, vectors_and_likeness


@dataclass(frozen=True)
class LearnedOptions(Options):
    """Options of `Learned`."""

    std: Annotated[Amount, Affects("nothing")] = 0.02
    """standard deviation of the table at the start (0 starts from zeros)"""


@POSITIONS.register("learned")
class Learned(TablePosition):
    """Learned positions: a trained row each, added to the embeddings; needs ``max_length``."""

    name = "learned"
    acts_on = "embeddings"
    holds = "a table"
    Options = LearnedOptions
    options: LearnedOptions

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        return {"encodings": lambda: vectors_and_likeness(self, length)}


def resize_grid(table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """A picture's table at another resolution: (h w, width) to (h' w', width).

    Rows are patches in raster order, without a class token's. Bicubic between the centres of the
    patches, as Hugging Face's ViT does it; the same grid gives the same table.

    Raises:
        ShapeError: the table has not as many rows as the grid ``before`` has patches.
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
