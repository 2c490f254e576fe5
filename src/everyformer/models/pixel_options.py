"""How a picture becomes a sequence, and back: options of pixel models (plain data, no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Count, When
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class PixelOptions(Options):
    order: Literal["raster", "blocks"] = "raster"
    """row by row, or block by block and row by row inside each (Image Transformer, 2-D)"""
    tile: Annotated[tuple[Count, Count], When("order", "blocks")] = (4, 12)
    """rows and columns of a block; columns count tokens, of colours three a pixel (one with
    mixture); those at the edges are cut off"""
    shift: Literal["order", "block"] = "order"
    """what is read to predict a token: the one made before it; or that of its own block, the first
    reading nothing, as in tensor2tensor, where the last of a block is then never read"""
    output: Literal["categorical", "mixture"] = "categorical"
    """256 numbers for each channel of a pixel; or a token for the whole pixel and a mixture of
    discretised logistics over its channels (PixelCNN++)"""
    mixtures: Annotated[Count, When("output", "mixture")] = 10
    """components of a mixture"""
    tables: Literal["shared", "channel"] = "shared"
    """one table of 256 intensities, or one for each channel"""
    places: Literal["learned", "sinusoids"] = "learned"
    """learned vectors of row, column and channel, added up; or fixed waves of the row in half the
    width, and of column x channels + channel in the other"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift == "block" and self.order != "blocks":
            raise ConfigError("pixels.shift='block' needs pixels.order='blocks'")
