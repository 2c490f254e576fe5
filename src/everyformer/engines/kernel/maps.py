"""Feature maps of which a pass over the past holds one segment at a time, with their gradients.

    positive       M^{-1/2} exp(W x - m), at the level m - |x|^2 / 2
    hyperbolic     (2M)^{-1/2} exp([W x, -W x] - m), at the same level
    waves          M^{-1/2} [sin W x, cos W x]
    trigonometric  the same, at the level |x|^2 / 2

for M rows of W (1 or H, M, D): the features of `everyformer.engines.kernel.features`. m is the
largest exponent of a token; weights do not depend on it, so it needs no gradient. All features of a
text are many times its size; those of a segment stay in the cache, and are made again in the
backward pass.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

MapName = Literal["positive", "hyperbolic", "waves", "trigonometric"]
WAVES = ("waves", "trigonometric")


class SegmentMap(NamedTuple):
    """A map of queries and keys, by its name in the list above."""

    name: MapName
    rows: Tensor
    """W (1 or H, M, D)"""

    @property
    def levels(self) -> bool:
        """Whether keys have levels."""
        return self.name != "waves"

    @property
    def features(self) -> int:
        """Features of a query or key."""
        return self.rows.shape[1] * (1 if self.name == "positive" else 2)


class Mapped(NamedTuple):
    """Features of a segment."""

    x: Tensor
    """(B, H, l, D) what was mapped"""
    features: Tensor
    """(B, H, l, M)"""
    level: Tensor | None
    """(B, H, l)"""


def waves(angles: Tensor) -> Tensor:
    """[sin, cos] / sqrt(M) of M angles, in one tensor that is all the gradient needs."""
    count = angles.shape[-1]
    both = angles.new_empty(*angles.shape[:-1], 2 * count)
    torch.sin(angles, out=both[..., :count])
    torch.cos(angles, out=both[..., count:])
    return both.mul_(count**-0.5)


def mapped(x: Tensor, name: str, rows: Tensor) -> Mapped:
    """Features and levels of ``x`` (B, H, l, D), float32 or wider, by a `SegmentMap`."""
    products = torch.matmul(x, rows.to(x.dtype).mT)
    if name in WAVES:
        level = 0.5 * x.square().sum(-1) if name == "trigonometric" else None
        return Mapped(x, waves(products), level)
    logs = torch.cat([products, -products], -1) if name == "hyperbolic" else products
    top = logs.amax(-1, keepdim=True)
    level = top[..., 0] - 0.5 * x.square().sum(-1)
    features = logs.sub_(top.add_(0.5 * math.log(logs.shape[-1]))).exp_()
    return Mapped(x, features, level)


def gradients(
    of: Mapped, name: str, rows: Tensor, above: Tensor, of_level: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of W x (B, H, l, M).

    Args:
        above, of_level: those of the features, and of the level where it is used.
    """
    if name in WAVES:
        (sines, cosines), (first, second) = of.features.chunk(2, -1), above.chunk(2, -1)
        products = (cosines * first).addcmul_(sines, second, value=-1)
    else:
        products = of.features * above
        if name == "hyperbolic":
            rising, falling = products.chunk(2, -1)
            products = rising - falling
    dx = torch.matmul(products, rows.to(products.dtype))
    if of_level is not None and of.level is not None:
        dx.addcmul_(of.x, of_level[..., None], value=1 if name in WAVES else -1)
    return dx, products


def row_gradient(of: Mapped, products: Tensor, rows: Tensor) -> Tensor:
    """The gradient of W (1 or H, M, D) from that of W x (B, H, l, M)."""
    each = torch.einsum("bhlm,bhld->hmd", products, of.x)
    return each if rows.shape[0] > 1 else each.sum(0, keepdim=True)
