"""Pre-norm: x + f(norm(x)), the norm inside the branch; the stream itself is never normed.

Source: Xiong et al. 2020, arXiv 2002.04745 (as in GPT-2, Radford et al. 2019).
"""

from torch import Tensor

from everyformer.blocks.residual import Around, SingleStream
from everyformer.engines.remade import noted
from everyformer.genes.residuals import RESIDUALS


@RESIDUALS.register("pre")
class PreNorm(SingleStream):
    """x' = x + f(norm(x))."""

    name = "pre"

    def read(self, stream: Tensor, around: Around) -> Tensor:
        return noted(around.norm, stream)

    def join(self, stream: Tensor, y: Tensor, around: Around) -> Tensor:
        return stream + y
