"""Block-raster order: a picture made block by block, each block row by row.

    o(r, c) = ((R n + C) q_h + r - R q_h) q_w + (c - C q_w)
    R = floor(r / q_h),   C = floor(c / q_w),   n = ceil(width / q_w)

Blocks of (q_h, q_w) cells tile a grid of (height, width); those at the lower and right edge are cut
off where the grid ends, so that a cell's place is how many cells of the grid have a smaller o. In
pictures with channels the columns are column x channels + channel.

Source: Parmar et al. 2018, arXiv 1802.05751, section "2D Local Attention".
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError


class BlockOrder(NamedTuple):
    """A permutation of the cells r x width + c of a grid, and its inverse."""

    order: Tensor
    """(height x width,) int64: the cell that is made at each step"""
    steps: Tensor
    """(height x width,) int64: the step at which each cell is made"""


def block_order(
    height: int, width: int, block: tuple[int, int], device: torch.device | None = None
) -> BlockOrder:
    """The order in which the cells of a (height, width) grid are made, block by block.

    Args:
        block: rows and columns of a block; one as wide as the grid gives raster order.

    Raises:
        ConfigError: a side that is not at least 1.
    """
    sides = {"height": height, "width": width, "block rows": block[0], "block columns": block[1]}
    for name, side in sides.items():
        if side < 1:
            raise ConfigError(f"{name} must be at least 1, not {side}")
    rows = torch.arange(height, device=device)[:, None]
    columns = torch.arange(width, device=device)
    across = -(-width // block[1])
    which = rows // block[0] * across + columns // block[1]
    keys = (which * block[0] + rows % block[0]) * block[1] + columns % block[1]
    order = keys.flatten().argsort()
    return BlockOrder(order, order.argsort())
