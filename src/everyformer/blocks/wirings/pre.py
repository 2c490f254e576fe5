"""Pre-norm: x + f(norm(x)), the norm inside the branch; the stream itself is never normed.

Source: Xiong et al. 2020, arXiv 2002.04745 (as in GPT-2, Radford et al. 2019).
"""

from __future__ import annotations

from torch import Tensor

from everyformer.blocks.wirings import WIRINGS
from everyformer.blocks.wirings.base import Norm, Residual


@WIRINGS.register("pre")
class PreNorm(Residual):
    """x' = x + f(norm(x))."""

    name = "pre"

    def read(self, stream: Tensor, norm: Norm) -> Tensor:
        return norm(stream)

    def join(self, stream: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return stream + y
