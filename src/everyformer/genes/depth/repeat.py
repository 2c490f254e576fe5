"""Repeated depth: the same blocks T times over, so that depth costs no parameters.

    step t N + n of T N applies block n,   0 <= t < T

One block (``layers=1``) T times is a Universal Transformer without step signals or halting; N of
them are ALBERT's groups in turn. States, inner losses and starts count steps.

Sources: Dehghani et al. 2018, arXiv 1807.03819; Lan et al. 2020, arXiv 1909.11942.
"""

from dataclasses import dataclass

from torch import Tensor

from everyformer.blocks.depth import Depth
from everyformer.blocks.passing import AllTokens, LayerSchedule, StackRun, Steps
from everyformer.core.bounds import Layers
from everyformer.core.config import Options
from everyformer.core.trials import Trials
from everyformer.genes.depth import DEPTHS


@dataclass(frozen=True)
class RepeatOptions(Options):
    times: Layers = 2
    """T, how often the blocks are applied one after the other"""


@DEPTHS.register("repeat")
class Repeat(Depth):
    """All blocks, T times."""

    name = "repeat"
    Options = RepeatOptions
    trials = Trials(variants=({"times": 3},))

    def steps(self, blocks: int) -> Steps:
        return [(n,) for n in range(blocks)] * self.options.times

    def schedule(self, run: StackRun, x: Tensor) -> LayerSchedule:
        return AllTokens(run)
