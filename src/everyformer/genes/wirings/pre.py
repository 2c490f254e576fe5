"""Pre-norm: x + f(norm(x)), the norm inside the branch; the stream itself is never normed.

Source: Xiong et al. 2020, arXiv 2002.04745 (as in GPT-2, Radford et al. 2019).
"""

from torch import Tensor

from everyformer.blocks.wiring import Around, Residual
from everyformer.genes.wirings import WIRINGS


@WIRINGS.register("pre")
class PreNorm(Residual):
    """x' = x + f(norm(x))."""

    name = "pre"

    def read(self, stream: Tensor, around: Around) -> Tensor:
        return around.norm(stream)

    def join(self, stream: Tensor, y: Tensor, around: Around) -> Tensor:
        return stream + y
