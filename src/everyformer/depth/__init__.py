"""Depth: how often the blocks of a stack are applied, one file each; `DEPTH` is the gene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import GeneError
from everyformer.core.gene import Blueprint, Gene
from everyformer.core.registry import Registry
from everyformer.positions import POSITION

if TYPE_CHECKING:
    from everyformer.depth.base import Depth

DEPTHS: Registry[type[Depth]] = Registry("depth", __name__)


class DepthGene(Gene):
    """How often, in which order and for which tokens blocks are applied."""

    name = "depth"
    question = (
        "how often blocks are applied: plain, each once; repeat, all of them several times; "
        "universal, until a token halts"
    )
    footing = True

    def around(self, plan: Blueprint) -> Depth:
        sizes = {"width": plan.width, "adds_positions": self.adds_positions(plan)}
        depth: Depth = self.make(plan.genes[self.name], **sizes)
        return depth

    def check(self, plan: Blueprint, mixers: Sequence[Any]) -> None:
        """Refuse what a depth that drives the blocks contradicts."""
        choice = self.typed(plan.genes[self.name])
        if not DEPTHS.get(str(choice.name)).drives:
            return
        if plan.genes["wiring"].name == "reversible":
            raise GeneError(
                f"depth '{choice.name}' changes the stream of single tokens between steps, from "
                "which wiring 'reversible' could not compute activations again: use 'pre' or 'post'"
            )
        if choice.get("halting") == "global" and plan.causal:
            raise GeneError(
                f"halting 'global' of depth '{choice.name}' halts a text by the mean of all its "
                "tokens, but causal=True hides later ones: use halting 'act'"
            )
        if not self.adds_positions(plan):
            return
        if POSITION.acts_on(plan) in ("embeddings", "layers"):
            raise GeneError(
                f"depth '{choice.name}' with order 'sinusoid' adds positions at every step, and "
                f"position '{plan.genes[POSITION.name].name}' adds them too: leave either out"
            )
        if plan.genes["memory"].name is not None:
            raise GeneError(
                f"depth '{choice.name}' adds positions to every layer's input, and so memory "
                f"'{plan.genes['memory'].name}' would remember them too: use a position of "
                "distances and order 'none'"
            )

    def adds_positions(self, plan: Blueprint) -> bool:
        """Whether positions are added to what enters the layers, at every step."""
        choice = self.typed(plan.genes[self.name])
        if not DEPTHS.get(str(choice.name)).drives:
            return False
        order, given = choice.get("order"), plan.genes[POSITION.name].name
        return given is None if order is None else order == "sinusoid"


DEPTH = DepthGene(DEPTHS, "plain", needed=True)
