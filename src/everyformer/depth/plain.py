"""Plain depth: every block once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from everyformer.depth import DEPTHS
from everyformer.depth.base import Depth


@DEPTHS.register("plain")
class Plain(Depth):
    """Steps 0 .. N-1 are blocks 0 .. N-1."""

    name = "plain"

    def order(self, blocks: int) -> Sequence[int]:
        return range(blocks)
