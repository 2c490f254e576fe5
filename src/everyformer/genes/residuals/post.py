"""Post-norm: norm(x + f(x)), as published in 2017; the last norm is that of the last sub-layer.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.1.
"""

from torch import Tensor

from everyformer.blocks.residual import Around, SingleStream
from everyformer.engines.remade import noted
from everyformer.genes.residuals import RESIDUALS


@RESIDUALS.register("post")
class PostNorm(SingleStream):
    """x' = norm(x + f(x))."""

    name = "post"
    last_norm = False

    def read(self, stream: Tensor, around: Around) -> Tensor:
        return stream

    def join(self, stream: Tensor, y: Tensor, around: Around) -> Tensor:
        return noted(around.norm, stream + y)
