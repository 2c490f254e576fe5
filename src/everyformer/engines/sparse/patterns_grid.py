"""Rectangles of a picture: tiles of queries that see their surroundings.

Cells (r, c) of a grid are cut into tiles of (q_h, q_w) cells, and those at the lower and right edge
end with the grid. All cells of a tile see one rectangle, the tile with a flange of m_h rows and m_w
columns around it. Causal tokens are the cells in block-raster order o, block by block, each
row by row, and see no later one:

    (r', c') visible to (r, c)  iff  R - m_h <= r',  C - m_w <= c' < C + q_w + m_w,  o' <= o
    R = floor(r / q_h) q_h,   C = floor(c / q_w) q_w

so that the flange on the right is seen in the rows above the tile, not in its own. Otherwise tokens
are the cells in raster order, and the flange is below too: r' < R + q_h + m_h.

Source: Parmar et al. 2018, arXiv 1802.05751, section "2D Local Attention".
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from everyformer.core.errors import GeneError
from everyformer.engines.sparse.layouts import Indexed, Layout, Windows
from everyformer.engines.sparse.patterns import Part, Pattern


@dataclass(frozen=True, kw_only=True)
class Rectangles(Pattern):
    """Tiles of ``tile`` cells of a ``grid`` (rows, columns), with a ``flange`` around each."""

    kind = "rectangles"
    grid: tuple[int, int]
    tile: tuple[int, int]
    flange: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if min(*self.grid, *self.tile) < 1 or min(self.flange) < 0:
            raise GeneError(
                f"a grid of {self.grid} in tiles of {self.tile} with a flange of {self.flange}: "
                "grids and tiles have at least 1 row and column, flanges at least 0"
            )

    def cells(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns of the tokens ``at``."""
        (rows, columns), (high, wide) = self.grid, self.tile
        if not self.causal:
            return at // columns, at % columns
        band, rest = at // (high * columns), at % (high * columns)
        tall = (rows - band * high).clamp(1, high)
        across, rest = rest // (tall * wide), rest % (tall * wide)
        broad = (columns - across * wide).clamp(1, wide)
        return band * high + rest // broad, across * wide + rest % broad

    def tokens(self, row: Tensor, column: Tensor) -> Tensor:
        """The inverse of `cells`, of cells of the grid."""
        (rows, columns), (high, wide) = self.grid, self.tile
        if not self.causal:
            return row * columns + column
        top, left = row // high * high, column // wide * wide
        tall = (rows - top).clamp(max=high)
        broad = (columns - left).clamp(max=wide)
        return top * columns + left * tall + (row - top) * broad + column - left

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        (high, wide), (up, side) = self.tile, self.flange
        (row, column), (other_row, other_column) = self.cells(i), self.cells(j)
        top, left = row // high * high, column // wide * wide
        mask = (other_row >= top - up) & (other_column >= left - side)
        mask = mask & (other_column < left + wide + side)
        return mask if self.causal else mask & (other_row < top + high + up)

    def parts(self, length: int) -> Iterator[Part]:
        at = torch.arange(length)
        row, column = self.cells(at)
        tile = row // self.tile[0] * self._across + column // self.tile[1]
        sizes = tile.bincount()
        if self.causal and bool((sizes[:-1] == sizes[0]).all()) and sizes[-1] <= sizes[0]:
            keys = self._around(torch.arange(len(sizes)), length)
            yield Windows(int(sizes[0])), keys
            return
        order, first = tile.argsort(stable=True), sizes.cumsum(0) - sizes
        for size in sizes[sizes > 0].unique().tolist():
            alike = (sizes == size).nonzero().squeeze(1)
            queries: Layout = Indexed(order[first[alike][:, None] + torch.arange(size)])
            yield queries, self._around(alike, length)

    def _around(self, tiles: Tensor, length: int) -> Indexed:
        """The rectangles of ``tiles``, numbered in raster order, without what causal ones hide."""
        (rows, columns), (up, side) = self.grid, self.flange
        high, wide = min(self.tile[0], rows), min(self.tile[1], columns)
        up, side = min(up, rows), min(side, columns)
        down = torch.arange(-up, high if self.causal else high + up)[:, None]
        right = torch.arange(-side, wide + side)
        read = torch.ones(len(down), len(right), dtype=torch.bool)
        if self.causal:
            read = (down < 0) | (right < wide)
        row = (tiles // self._across * self.tile[0])[:, None] + down.expand_as(read)[read]
        column = (tiles % self._across * self.tile[1])[:, None] + right.expand_as(read)[read]
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        at = self.tokens(row.clamp(0, rows - 1), column.clamp(0, columns - 1))
        return Indexed(torch.where(inside & (at < length), at, -1))

    @property
    def span(self) -> int | None:
        if not self.causal:
            return None
        at = torch.arange(self.grid[0] * self.grid[1])
        return int((self._last_reader(at) - at).max())

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        if not self.causal:
            return torch.ones_like(j, dtype=torch.bool)
        return self._last_reader(j) >= now

    def _last_reader(self, j: Tensor) -> Tensor:
        """The last query, of a causal order, that sees each key."""
        (rows, columns), (high, wide) = self.grid, self.tile
        row, column = self.cells(j)
        band = ((row + self.flange[0]) // high).clamp(max=-(-rows // high) - 1)
        across = ((column + self.flange[1]) // wide).clamp(max=self._across - 1)
        tall = (rows - band * high).clamp(max=high)
        return band * high * columns + tall * ((across + 1) * wide).clamp(max=columns) - 1

    @property
    def _across(self) -> int:
        return -(-self.grid[1] // self.tile[1])
