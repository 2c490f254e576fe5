"""Plain depth: every block once, in order."""

from torch import Tensor

from everyformer.blocks.depth import Depth
from everyformer.blocks.passing import AllTokens, LayerSchedule, StackRun, Steps
from everyformer.genes.depth import DEPTHS


@DEPTHS.register("plain")
class Plain(Depth):
    """Steps 0 .. N-1 are blocks 0 .. N-1."""

    name = "plain"

    def steps(self, blocks: int) -> Steps:
        return [(n,) for n in range(blocks)]

    def schedule(self, run: StackRun, x: Tensor) -> LayerSchedule:
        return AllTokens(run)
