"""The band of a product of two factors, without the product: O(L n r) for n diagonals of rank r.

    b_{t,j} = u_t . v_{t+j},   0 <= j < n

Blocks of C rows meet the C + n - 1 rows of v that they need in one small product each; the band is
a view of its diagonals.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.core.leaving import leaves_torch
from everyformer.engines.operators import applied, operator
from everyformer.engines.ranges import full_precision, returned, widened


def band_product(u: Tensor, v: Tensor, count: int) -> Tensor:
    """``count`` diagonals of u v^T.

    Args:
        u: (X, L, r). v: (X, L + count - 1, r).

    Returns:
        (X, L, count), float32 at least.
    """
    if not leaves_torch() and u.shape[1] == 1:
        # of one token there are no blocks
        with full_precision(u):
            return torch.bmm(widened(u), widened(v).mT)
    return applied(_band_product, u, v, count)


def _band(u: Tensor, v: Tensor, count: int) -> Tensor:
    # b stands in exponents, where digits count: it is a product of float32 whatever was given
    with full_precision(u):
        rows, windows, _ = _blocks(widened(u), widened(v), count)
        band = diagonals(torch.bmm(rows, windows.transpose(1, 2)), count)
    return band.reshape(u.shape[0], -1, count)[:, : u.shape[1]].contiguous()


def _gradients(u: Tensor, v: Tensor, grad_band: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """dU = G V and, block by block into overlapping places, dV = G^T U."""
    with full_precision(u):
        (many, length, rank), size = u.shape, _size(count)
        rows, windows, padded = _blocks(widened(u), widened(v), count)
        each = rows.shape[0] // many
        products = grad_band.new_zeros(*rows.shape[:2], windows.shape[1])
        spaced = pad(grad_band, (0, 0, 0, each * size - length)).view(-1, size, count)
        diagonals(products, count).copy_(spaced)
        du = torch.bmm(products, windows).view(many, -1, rank)[:, :length]
        parts = torch.bmm(products.transpose(1, 2), rows).view(many, each, -1, rank)
        dv = torch.zeros_like(padded)
        for first in range(0, parts.shape[2], size):
            part = parts[:, :, first : first + size]
            reached = dv[:, first : first + each * size].view(many, each, size, rank)
            reached[:, :, : part.shape[2]] += part
    return returned(du, u), returned(dv[:, : v.shape[1]], v)


def _size(count: int) -> int:
    """Rows of a block: near the number of diagonals little is wasted, below 32 nothing is fast."""
    return max(32, count)


def _blocks(u: Tensor, v: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of u (Y, C, r), their windows of v (Y, C + n - 1, r), and v as it was padded."""
    size = _size(count)
    each = -(-u.shape[1] // size)
    u = pad(u, (0, 0, 0, each * size - u.shape[1]))
    v = pad(v, (0, 0, 0, (each + 1) * size - v.shape[1])).contiguous()
    windows = v[:, : each * size + count - 1].unfold(1, size + count - 1, size).mT
    return u.reshape(-1, size, u.shape[2]), windows.flatten(0, 1), v


def diagonals(products: Tensor, count: int) -> Tensor:
    """View (..., C, n) of contiguous (..., C, W), W >= C + n - 1: row i, columns i .. i + n - 1."""
    return products.flatten(-2).unfold(-1, count, products.shape[-1] + 1)


def _multiplications(u: Any, count: int) -> int:
    """Entries of all small products, times r."""
    size = _size(count)
    return math.ceil(u[1] / size) * size * (size + count - 1) * u[0] * u[2]


_band_product, _ = operator(
    "band_product",
    _band,
    _gradients,
    results=("band",),
    inputs=("u", "v"),
    shapes=lambda u, count: widened(u).new_empty(*u.shape[:2], count),
    flops=(
        lambda u, count: 2 * _multiplications(u, count),
        lambda u, count: 4 * _multiplications(u, count),
    ),
)
