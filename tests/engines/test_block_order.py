"""Block-raster order: against blocks walked one after the other, and its limits."""

import pytest
import torch

from everyformer.core.errors import ConfigError
from everyformer.engines.sparse.block_order import block_order

GRIDS = [(4, 6, (2, 3)), (5, 7, (2, 3)), (1, 9, (4, 2)), (7, 1, (3, 5)), (6, 6, (6, 6))]


def walked(height: int, width: int, block: tuple[int, int]) -> list[int]:
    """Cell after cell, by four loops."""
    made = []
    for top in range(0, height, block[0]):
        for left in range(0, width, block[1]):
            for r in range(top, min(top + block[0], height)):
                made += [r * width + c for c in range(left, min(left + block[1], width))]
    return made


@pytest.mark.parametrize(("height", "width", "block"), GRIDS)
def test_blocks_are_walked_one_after_the_other(height, width, block):
    assert block_order(height, width, block).order.tolist() == walked(height, width, block)


@pytest.mark.parametrize(("height", "width", "block"), GRIDS)
def test_the_places_are_the_inverse(height, width, block):
    order, places = block_order(height, width, block)
    cells = torch.arange(height * width)
    assert torch.equal(order[places], cells)
    assert torch.equal(places[order], cells)


@pytest.mark.parametrize("block", [(1, 5), (1, 9), (4, 5), (9, 9)])
def test_blocks_as_wide_as_the_grid_give_raster_order(block):
    assert torch.equal(block_order(4, 5, block).order, torch.arange(20))


def test_the_published_formula_where_blocks_tile_the_grid():
    height, width, (q_h, q_w) = 6, 12, (2, 4)
    places = block_order(height, width, (q_h, q_w)).steps.view(height, width)
    for r in range(height):
        for c in range(width):
            up, left = r // q_h, c // q_w
            o = ((up * (width // q_w) + left) * q_h + r - up * q_h) * q_w + (c - left * q_w)
            assert places[r, c] == o


@pytest.mark.parametrize("sides", [(0, 4, (2, 2)), (4, 0, (2, 2)), (4, 4, (0, 2)), (4, 4, (2, 0))])
def test_sides_below_one_are_refused(sides):
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        block_order(*sides)
