"""Wirings: how sub-layers are joined to the stream, one file each; `WIRING` is the gene."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.blocks.wiring import Wiring

WIRINGS: Registry[type[Wiring]] = Registry("wiring", __name__)


class WiringGene(Gene):
    """Where the norm stands, and what goes from layer to layer."""

    name = "wiring"
    footing = True
    question = (
        "how sub-layers are joined to the stream: pre, x + f(norm(x)); post, norm(x + f(x)), as "
        "published in 2017; reversible, x1 + f(norm(x2)), whose activations are not kept; gated, "
        "g(x, relu(f(norm(x)))) with a gate that is learned"
    )

    def around(self, plan: ModelConfig) -> Wiring:
        wiring: Wiring = self.make(plan.genes[self.name])
        return wiring


WIRING = WiringGene(WIRINGS, "pre", needed=True)
