"""Image Transformer: softmax attention inside blocks of a picture and a memory beside each.

    1-D   j in [floor(i / l_q) l_q - l_m, i],  of tokens in any order
    2-D   the rectangle around the tile of i, in block-raster order (`engines.patterns_grid`)

l_q = ``block_size``, l_m = ``memory_size``; q_h x q_w = ``tile``, m_h and m_w = ``flange``. In 1-D
a token sees l_m to l_m + l_q - 1 earlier ones, in 2-D those of (q_h + m_h)(q_w + 2 m_w) cells that
are made before it. Bidirectional: 1-D l_m tokens on both sides of the block, 2-D the flange all
around, of tokens in raster order.

The 2-D form counts cells, so it must know the ``grid``: models of pixels tell it theirs and their
tile (``pixels={"order": "blocks", "tile": (q_h, q_w)}``), else give it or, where it is
bidirectional, `Mask.grid`. A column is a channel of a pixel where these are tokens of their own.

Cost: O(L (l_q + l_m)), or O(L (q_h + m_h)(q_w + 2 m_w)). State: the keys and values of l_q + l_m
tokens, or of about q_h + m_h rows. A text of at most two blocks with l_m = l_q is plain causal
attention, as in tensor2tensor, where it is a case of its own.

Source: Parmar et al. 2018, arXiv 1802.05751, sections 3 and 4.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from everyformer.core.bounds import Count, When, Whole
from everyformer.core.dispatch import take
from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mixer import Picture
from everyformer.core.state import State
from everyformer.core.trials import LONGEST, Trials, are_attention
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.visibility import Visibility
from everyformer.engines.sparse.attention import SHORT
from everyformer.engines.sparse.patterns import Blocks
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import Rows
from everyformer.genes.mixers.patterned import PatternAttention, PatternOptions

TILE = (4, 12)
Grid = tuple[int, int]


@dataclass(frozen=True)
class ImageTransformerOptions(PatternOptions):
    dims: Literal[1, 2] = 1
    """1: blocks of the row of tokens; 2: tiles of the picture"""
    block_size: Annotated[Count, When("dims", 1)] = 256
    """l_q, queries of a block (1-D)"""
    memory_size: Annotated[Whole | None, When("dims", 1)] = None
    """l_m, tokens before a block that it sees, and after it if not causal (1-D; default: l_q)"""
    tile: Annotated[tuple[Count, Count] | None, When("dims", 2)] = None
    """q_h, q_w, rows and columns of a tile (2-D; default: that of the model's pixels, or 4, 12)"""
    flange: Annotated[tuple[Whole, Whole], When("dims", 2)] = (4, 12)
    """m_h, m_w, rows above a tile and columns on both sides that it sees (2-D)"""
    grid: Annotated[tuple[Count, Count] | None, When("dims", 2)] = None
    """rows and columns of the picture (2-D; default: those of the model's pixels)"""


LIMITS: dict[str, dict[str, Any]] = {
    "one block": {"block_size": LONGEST, "memory_size": 0},
    "a memory of all tokens": {"block_size": 3, "memory_size": LONGEST},
    "one tile": {"dims": 2, "grid": (5, 8), "tile": (5, 8), "flange": (0, 0)},
    "a flange over the picture": {
        "dims": 2, "grid": (1, LONGEST), "tile": (1, 3), "flange": (0, LONGEST)
    },
}  # fmt: skip


@MIXERS.register("image-transformer")
class ImageTransformer(PatternAttention):
    """Local attention over (B, L, width), with its projections."""

    name = "image-transformer"
    trials = Trials(
        variants=(
            {},
            {"block_size": 4, "memory_size": 3, "backend": "blocked"},
            {"block_size": 3, "memory_size": 0, "bias": ("query", "key", "value", "output")},
            {"block_size": 1, "memory_size": 5},
            {"dims": 2, "grid": (5, 8), "tile": (2, 3), "flange": (1, 2)},
            {"dims": 2, "grid": (4, 10), "tile": (2, 5), "flange": (3, 0), "backend": "blocked"},
            {"dims": 2, "grid": (20, 2), "tile": (1, 1), "flange": (0, 9), "bias": ("key",)},
        ),
        limits=are_attention("image-transformer", LIMITS),
    )
    drawn_for = "lm"
    Options = ImageTransformerOptions
    options: ImageTransformerOptions
    examples = (
        ("1-D", {"block_size": 8, "memory_size": 8}),
        ("2-D", {"dims": 2, "grid": (8, 8), "tile": (4, 4), "flange": (2, 2)}),
    )

    def prepare(self, longest: int | None) -> None:
        o, causal = self.options, self.causal
        self._plan: SparsePlan | None = None
        if o.dims == 1:
            back = o.block_size if o.memory_size is None else o.memory_size
            self._plan = SparsePlan.of(
                Blocks(size=o.block_size, before=back, after=0 if causal else back, causal=causal)
            )
        elif o.grid is not None:
            self._plan = self._tiled(o.grid)
            self.max_length = math.prod(o.grid)
        elif causal:
            raise GeneError(
                "image-transformer with `dims=2` and `causal=True` makes a picture tile by tile, "
                "so it must know its shape: give `grid=(rows, columns)`; models of the task "
                "'pixels' do so by themselves"
            )
        self.planar = o.dims == 2 and not causal
        if self.planar:
            self.supported_masks = frozenset({"padding_mask", "documents", "grid"})  # type: ignore[misc]

    @classmethod
    def for_pictures(
        cls, options: ImageTransformerOptions, picture: Picture
    ) -> ImageTransformerOptions:
        if options.dims == 1:
            return options
        if options.grid not in (None, picture.grid):
            raise GeneError(
                f"image-transformer: `grid={options.grid}`, but the model's pictures have "
                f"{picture.grid[0]} rows of {picture.grid[1]} tokens: leave it out"
            )
        tile = options.tile or (picture.causal and picture.tile) or TILE
        order = picture.tile or (1, picture.grid[1])
        if picture.causal and _in_order(tile, picture.grid) != _in_order(order, picture.grid):
            named = "raster order" if picture.tile is None else f"blocks of {picture.tile}"
            raise GeneError(
                f"image-transformer with `dims=2` sees tiles of {tile}, but the model makes its "
                f"pictures in {named}: give pixels={{'order': 'blocks', 'tile': {tile}}}"
            )
        return dataclasses.replace(options, tile=tile, grid=picture.grid)

    def _check_cells(self, longest: int) -> None:
        grid = self.options.grid
        if self.max_length is not None and longest > self.max_length:
            raise ShapeError(
                f"{self.name} was built for a grid of {grid}, which has {self.max_length} cells, "
                f"but {longest} tokens were given: build it for a larger grid, or with `dims=1`"
            )

    def plan(self, length: int) -> SparsePlan:
        if self._plan is None:
            raise UnsupportedError(
                "image-transformer with `dims=2` needs the picture's shape: give "
                "Mask(grid=(rows, columns)), or build it with `grid=(rows, columns)`"
            )
        self._check_cells(length)
        return self._plan

    def heads_of(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        if rows.grid is None:
            bounded = self.max_length is not None and not torch.compiler.is_compiling()
            if state is not None and bounded:
                self._check_cells(int((state.num_tokens + rows.lengths).max()))
            return self._by_plan(rows, state)
        plan, padding_mask = self._of_grid(rows), rows.padding_mask
        positions = torch.arange(rows.x.shape[1], device=rows.x.device)
        q, k, v = self.project(rows.x, apply_rotary=partial(self.rotate, positions=positions[None]))
        if padding_mask is None:
            return self.attend(q, k, v, plan), None
        take(self.name, "dense", "units of whole rows know no hidden cells", q.shape[2] > SHORT)
        mask = plan.visible(positions, positions, self.heads) & padding_mask[:, None, None]
        pairs = Pairs.of(positions[None], positions[None], regular=True, causal=False)
        return self.scores.attend(q, k, v, Visibility(mask=mask), pairs), None

    def reference_heads(self, text: Rows) -> Tensor:
        if text.grid is None:
            return self._reference(text)
        mask = self._of_grid(text).mask(text.x.shape[1], self.heads).to(text.x.device)
        mask = mask if text.padding_mask is None else mask & text.padding_mask
        return self._by_definition(self.project(text.x), mask)

    def _of_grid(self, rows: Rows) -> SparsePlan:
        """The plan of pictures whose shape a mask tells."""
        grid, own, tokens = rows.grid, self.options.grid, rows.x.shape[1]
        assert grid is not None
        if math.prod(grid) != tokens or own not in (None, grid):
            known = "" if own is None else f", built for a grid of {own}"
            raise ShapeError(
                f"a grid of {grid} does not hold the {tokens} tokens of this {self.name}{known}"
            )
        return self._tiled(grid)

    def _tiled(self, grid: Grid) -> SparsePlan:
        o = self.options
        return SparsePlan.of(
            Rectangles(grid=grid, tile=o.tile or TILE, flange=o.flange, causal=self.causal)
        )


def _in_order(tile: Grid, grid: Grid) -> Grid:
    """Tiles that are made in the same order are the same: those of a whole row in raster order."""
    wide = min(tile[1], grid[1])
    return (1 if wide == grid[1] else min(tile[0], grid[0])), wide
