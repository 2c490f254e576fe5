"""Axial positions: a table over a long text, made of short ones.

    P_p = concat_i E_i[index_i(p)],      E_i in R^(L_i x d_i),   sum_i d_i = d,   prod_i L_i >= L

or, with ``combine="sum"``, sum_i E_i[index_i(p)] of tables that are all d wide: of shape (L / l, l)
those of floor(p / l) and p mod l (Sparse Transformer, for text and audio).

index(p) is p as a number with digits of base L_1, ..., L_n, the last one fastest (row-major), so
the parameters are sum_i L_i d_i instead of L d: of 16,384 positions as 128 x 128, 128 d.

The start is that of the token embeddings they are added to: N(0, 1) where these have unit variance
(``reformer``, whose scale is sqrt(width), and trax), else N(0, 0.02^2), or less where an ``init``
has its own tables; a sum of n tables has their variance together. With N(0, 1) beside embeddings of
0.02, as Hugging Face's Reformer draws them, tokens drown in them: 150 steps on 1 MB of text end
at 3.36 nats, as counting letters does, and at 2.67 with equal scales.

Sources: Kitaev et al. 2020, arXiv 2001.04451; sums, Child et al. 2019, arXiv 1904.10509. In trax
and Hugging Face a training text must be prod_i L_i long; here any up to that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount, Count
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.panels import Pictures
from everyformer.core.position import Position, Sizes
from everyformer.core.trials import LENGTH, LONGEST, WIDTH, Make, Pair, Trials
from everyformer.genes.config import EMBEDDING_STD
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions._tables import vectors_and_likeness


@dataclass(frozen=True)
class AxialOptions(Options):
    """Options of `Axial`."""

    shape: tuple[Count, ...] | None = None
    """L_1, ..., L_n, whose product is the longest text (default: a square about max_length)"""
    dims: tuple[Count, ...] | None = None
    """d_1, ..., d_n, which add up to width (default: equal parts)"""
    combine: Literal["concat", "sum"] = "concat"
    """rows side by side, or added up (no dims then)"""
    std: Annotated[Amount | None, Affects("nothing")] = None
    """standard deviation of the tables at the start (default: the token embeddings', 0.02 or, where
    these are scaled, 1; with combine='sum' over sqrt(n))"""


def _limits(make: Make) -> list[Pair]:
    """One axis is a learned table."""
    one = Axial(width=WIDTH, max_length=LONGEST, options={"shape": (LONGEST,)})
    positions = torch.arange(LENGTH)[None]

    def table(x: Tensor) -> Tensor:
        return one.tables[0][:LENGTH].to(x)[None]

    return [("one axis is a table", lambda x: one.embed(positions).to(x), table)]


@POSITIONS.register("axial")
class Axial(Position):
    """Axial positions: rows of several trained tables side by side, added to the embeddings.

    They need ``max_length`` or ``shape``.

    Raises:
        GeneError: a shape too small for ``max_length``, or dims that do not add up to ``width``.
    """

    name = "axial"
    trials = Trials(limits=_limits)
    acts_on = "embeddings"
    Options = AxialOptions
    options: AxialOptions

    def build(self, sizes: Sizes) -> None:
        o, width, max_length = self.options, sizes.width, sizes.max_length
        self.shape = o.shape or _square(max_length)
        axes = len(self.shape)
        equal = (width // axes,) * (axes - 1)
        dims = o.dims or (*equal, width - sum(equal))
        if math.prod(self.shape) < (max_length or 1):
            raise GeneError(
                f"axial positions of `shape={self.shape}` reach {math.prod(self.shape)} tokens, "
                f"but `max_length={max_length}`: give a shape whose product is at least that"
            )
        if o.combine == "sum":
            if o.dims is not None:
                raise GeneError(
                    f"axial positions: `dims={o.dims}` are for tables side by side; with "
                    "`combine='sum'` all are as wide as the model"
                )
            dims = (width,) * axes
        elif len(dims) != axes or sum(dims) != width or min(dims) < 1:
            raise GeneError(
                f"axial positions: `dims={dims}` must be {axes} numbers, one for each of "
                f"`shape={self.shape}`, that add up to `width={width}`"
            )
        self.max_length = math.prod(self.shape)
        std = EMBEDDING_STD if o.std is None else o.std
        self.tables = nn.ParameterList(
            torch.randn(length, size) * std for length, size in zip(self.shape, dims, strict=True)
        )
        for table in self.tables:
            table.no_decay = True

    @classmethod
    def scaled_to(cls, options: Any, std: float) -> Any:
        o: AxialOptions = options
        if o.std is not None:
            return o
        return replace(o, std=std / math.sqrt(len(o.shape or (0, 0)) if o.combine == "sum" else 1))

    def embed(self, positions: Tensor) -> Tensor:
        self.check(positions)
        parts = []
        for table in reversed(list(self.tables)):
            parts.append(nn.functional.embedding(positions % len(table), table))
            positions = positions // len(table)
        if self.options.combine == "sum":
            return torch.stack(parts).sum(0)
        return torch.cat(parts[::-1], -1)

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        return {"encodings": lambda: vectors_and_likeness(self, length)}


def _square(max_length: int | None) -> tuple[int, int]:
    """Two sides as equal as can be whose product holds ``max_length``."""
    if max_length is None:
        raise GeneError(
            "position 'axial' holds tables over positions: give `max_length=...` or `shape=(...)`"
        )
    side = math.isqrt(max_length - 1) + 1
    return -(-max_length // side), side
