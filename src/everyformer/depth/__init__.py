"""Depth: how often the blocks of a stack are applied, one file each; `DEPTH` is the gene."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.gene import Blueprint, Gene
from everyformer.core.registry import Registry

if TYPE_CHECKING:
    from everyformer.depth.base import Depth

DEPTHS: Registry[type[Depth]] = Registry("depth", __name__)


class DepthGene(Gene):
    """How often, and in which order, blocks are applied."""

    name = "depth"
    question = "how often blocks are applied: plain, each once; repeat, all of them several times"
    footing = True

    def around(self, plan: Blueprint) -> Depth:
        depth: Depth = self.make(plan.genes[self.name])
        return depth


DEPTH = DepthGene(DEPTHS, "plain", needed=True)
