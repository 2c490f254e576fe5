"""Plain depth: every block once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from everyformer.blocks.depth import Depth
from everyformer.genes.depth import DEPTHS


@DEPTHS.register("plain")
class Plain(Depth):
    """Steps 0 .. N-1 are blocks 0 .. N-1."""

    name = "plain"

    def order(self, blocks: int) -> Sequence[int]:
        return range(blocks)
