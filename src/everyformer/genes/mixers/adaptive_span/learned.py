"""Spans that heads have learned, and what follows from them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from everyformer.core.devices import readable
from everyformer.engines.softmax.spans import Reach, faded


class Spans(NamedTuple):
    """Spans of heads: in one call, or in all while weights stay as they are."""

    z: Tensor
    """(1, H, 1) or (B, H, L)"""
    ends: Tensor
    """distances from which on nothing is seen, as ``z``"""
    farthest: list[int]
    """the largest distance that each head sees"""
    fade: Tensor | None
    """log m (B or 1, H, n) of one token's distances, from the farthest to 1; None: of many tokens
    with spans of their own"""
    reach: Reach

    @classmethod
    def of(cls, z: Tensor, reach: Reach, ramp: int) -> Spans:
        """The spans that follow from ``z``, which fades over ``ramp`` keys."""
        ends, farthest = z + ramp, [reach.farthest] * z.shape[1]
        if readable(z):
            farthest = [reach.within(end) for end in ends.detach().amax((0, 2)).tolist()]
        one = z.shape[2] == 1
        fade = faded(ends.detach(), max(farthest), reach.near, ramp) if one else None
        return cls(z, ends, farthest, fade, reach)
