"""Products with the lower triangle of a matrix, rows of it at a time.

    Y_i = sum_{j <= i} W_ij X_j,   dX_j = sum_{i >= j} W_ij dY_i,   dW_ij = dY_i . X_j  (j <= i)

What lies above the diagonal is neither multiplied nor copied: half of the operations of a product
with the whole, and none of its three copies of the matrix.
"""

import torch
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.core.leaving import leaves_torch
from everyformer.engines.operators import operator
from everyformer.engines.ranges import fake, full_precision

ROWS = 256
"""rows of W at a time: enough for the products' full rate, few enough for the cache"""
SHORT = 512
"""tokens up to which a product with the whole takes no longer"""


def lower_product(w: Tensor, x: Tensor) -> Tensor:
    """The lower triangle of ``w`` (H, L, L) times ``x`` (B, H, L, C): (B, H, L, C).

    In x's dtype or, as other products, in that of autocast.
    """
    kind = x.device.type
    # an exported program is read by others, and a GPU multiplies all at once
    if leaves_torch() or kind != "cpu" or x.shape[2] <= SHORT:
        return w.tril() @ x
    x = x.to(torch.get_autocast_dtype(kind)) if autocasts(kind) else x
    # rows of the batch beside each other, so that W is read once
    y = _lower_product(w, x.permute(1, 2, 0, 3).flatten(2))
    return y.unflatten(2, (len(x), -1)).permute(2, 0, 1, 3)


def _multiply(w: Tensor, x: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    rows = x.new_empty(len(w), ROWS, x.shape[1])
    with full_precision(x):
        for first, last in _blocks(x):
            part = rows[:, : last - first, :last].copy_(w[:, first:last, :last])
            part[..., first:].tril_()
            torch.bmm(part, x[:, :last], out=y[:, first:last])
    return y


def _gradients(w: Tensor, x: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    columns = x.new_empty(len(w), x.shape[1], ROWS)
    dw = torch.empty_like(w, memory_format=torch.contiguous_format)
    with full_precision(x):
        for first, last in _blocks(x):
            part = columns[:, first:, : last - first].copy_(w[:, first:, first:last])
            part[:, : last - first].tril_()
            torch.bmm(part.mT, grad_y[:, first:], out=dx[:, first:last])
            lines = dw[:, first:last]
            if lines.dtype == x.dtype:
                torch.bmm(grad_y[:, first:last], x[:, :last].mT, out=lines[..., :last])
            else:
                lines[..., :last] = grad_y[:, first:last] @ x[:, :last].mT
            lines[..., first:last].tril_()
            lines[..., last:] = 0
    return dw, dx


def _blocks(x: Tensor) -> list[tuple[int, int]]:
    length = x.shape[1]
    return [(first, min(first + ROWS, length)) for first in range(0, length, ROWS)]


def _operations(x: tuple[int, ...]) -> int:
    """Of one product, blocks of rows counted whole."""
    heads, length, channels = x
    full, rest = divmod(length, ROWS)
    pairs = ROWS * ROWS * full * (full + 1) // 2 + rest * length
    return 2 * heads * channels * pairs


_lower_product, _ = operator(
    "lower_product",
    _multiply,
    _gradients,
    results=("y",),
    inputs=("w", "x"),
    shapes=lambda x: fake(x),
    flops=(_operations, lambda x: 2 * _operations(x)),
)
