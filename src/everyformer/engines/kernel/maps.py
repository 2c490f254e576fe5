"""Exponential features of which a pass over the past holds one segment, and their gradient.

    positive      M^{-1/2} exp(W x - m), at the level m - |x|^2 / 2
    hyperbolic    (2M)^{-1/2} exp([W x, -W x] - m), at the same level

for M rows of W: those of `everyformer.engines.kernel.features`, m the largest exponent of a token
(weights do not depend on it, so it needs no gradient). All features of a text are M / D times its
size; those of a segment stay in the cache, and are made again in the backward pass.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class SegmentMap(NamedTuple):
    """A map of queries and keys."""

    rows: Tensor
    """W (1 or H, M, D)"""
    hyperbolic: bool = False

    @property
    def features(self) -> int:
        """Features of a query or key."""
        return self.rows.shape[1] * (2 if self.hyperbolic else 1)


class Mapped(NamedTuple):
    """Queries or keys of a segment."""

    x: Tensor
    """(B, H, l, D)"""
    features: Tensor
    """(B, H, l, M)"""
    level: Tensor
    """(B, H, l)"""


def mapped(x: Tensor, by: SegmentMap) -> Mapped:
    """Features and levels of ``x`` (B, H, l, D), float32 or wider."""
    logs = torch.matmul(x, by.rows.to(x.dtype).mT)
    logs = torch.cat([logs, -logs], -1) if by.hyperbolic else logs
    top = logs.amax(-1, keepdim=True)
    level = top[..., 0] - 0.5 * x.square().sum(-1)
    features = logs.sub_(top.add_(0.5 * math.log(logs.shape[-1]))).exp_()
    return Mapped(x, features, level)


def unmapped(of: Mapped, by: SegmentMap, above: Tensor, of_level: Tensor | None) -> Tensor:
    """The gradient of x, from those ``above`` of its features and, if used, of its level."""
    products = of.features * above
    if by.hyperbolic:
        rising, falling = products.chunk(2, -1)
        products = rising - falling
    dx = torch.matmul(products, by.rows.to(products.dtype))
    return dx if of_level is None else dx.addcmul_(of.x, of_level[..., None], value=-1)
