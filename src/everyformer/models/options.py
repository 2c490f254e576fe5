"""Options of pixel models and of summaries (plain data, no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Amount, Count, Part, Positive, Unless, When, Whole
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


@dataclass(frozen=True)
class SummaryOptions(Options):
    per: Literal["tokens", "sentence"] | None = None
    """a global token for every so many tokens of a text, or for every sentence; none: no such"""
    every: Annotated[Count, When("per", "tokens")] = 16
    """how many tokens each stands for (per tokens)"""
    ends: tuple[Whole, ...] = ()
    """tokens that end a sentence, of which several may follow each other (per sentence; default: in
    a run those of the data whose text ends with a full stop, ! or ?, or a line, and what separates
    documents; of bytes 0 10 33 46 63)"""
    cpc: Amount = 0.0
    """in training, weight of the loss by which the global tokens of hidden sentences foretell those
    of the same sentences in full, beside 1 of the hidden tokens (mlm; as far as is recalled, 0.25
    is the paper's 0.8 to 0.2)"""
    cpc_share: Annotated[Part, Unless("cpc", 0)] = 0.15
    """probability that a sentence is hidden for it"""
    cpc_temperature: Annotated[Positive, Unless("cpc", 0)] = 1.0
    """what its inner products are divided by"""
    cpc_stop: Annotated[bool, Unless("cpc", 0)] = False
    """whether no gradient goes through the sentences in full"""
    mask_token: Whole | None = None
    """the token that stands for hidden ones (default: in a run the data's, else the last)"""

    def most(self, length: int) -> int:
        """Global tokens that a text of ``length`` tokens has at most."""
        if self.per is None:
            return 0
        return -(-length // self.every) if self.per == "tokens" else length
