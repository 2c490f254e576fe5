"""Features of which a pass over the past holds one segment, and their gradient.

    elu           elu(x) + 1, at no level
    positive      M^{-1/2} exp(W x - m), at the level m - |x|^2 / 2
    hyperbolic    (2M)^{-1/2} exp([W x, -W x] - m), at the same level

for M rows of W: the last two are those of `everyformer.engines.kernel.features`, m the largest
exponent of a token (weights do not depend on it, so it needs no gradient). All features of a text
are M / D times its size; those of a segment stay in the cache, and are made again in the backward
pass.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["elu", "positive", "hyperbolic"]


class SegmentMap(NamedTuple):
    """A map of queries and keys."""

    rows: Tensor | None
    """W (1 or H, M, D); None of elu"""
    kind: Kind = "positive"

    def features(self, channels: int) -> int:
        """Features of a query or key of so many ``channels``."""
        if self.rows is None:
            return channels
        return self.rows.shape[1] * (2 if self.kind == "hyperbolic" else 1)


class Mapped(NamedTuple):
    """Queries or keys of a segment."""

    x: Tensor
    """(B, H, l, D)"""
    features: Tensor
    """(B, H, l, M)"""
    level: Tensor | None
    """(B, H, l); None of elu"""


def mapped(x: Tensor, by: SegmentMap) -> Mapped:
    """Features and levels of ``x`` (B, H, l, D), float32 or wider."""
    if by.rows is None:
        # whose rows lie one after the other, where those of x need not
        below = torch.clamp(x, max=0, out=x.new_empty(x.shape))
        return Mapped(x, below.exp_().add_(x.relu()), None)
    logs = torch.matmul(x, by.rows.to(x.dtype).mT)
    logs = torch.cat([logs, -logs], -1) if by.kind == "hyperbolic" else logs
    top = logs.amax(-1, keepdim=True)
    level = top[..., 0] - 0.5 * x.square().sum(-1)
    features = logs.sub_(top.add_(0.5 * math.log(logs.shape[-1]))).exp_()
    return Mapped(x, features, level)


def unmapped(of: Mapped, by: SegmentMap, above: Tensor, of_level: Tensor | None) -> Tensor:
    """The gradient of x, from those ``above`` of its features and, if used, of its level."""
    if by.rows is None:
        # the slope is e^x = phi below 0, and 1 above, where phi is larger
        return of.features.clamp(max=1).mul_(above)
    products = of.features * above
    if by.kind == "hyperbolic":
        rising, falling = products.chunk(2, -1)
        products = rising - falling
    dx = torch.matmul(products, by.rows.to(products.dtype))
    return dx if of_level is None else dx.addcmul_(of.x, of_level[..., None], value=-1)
