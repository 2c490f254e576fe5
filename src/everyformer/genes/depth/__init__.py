"""Depth: how often the blocks of a stack are applied, one file each; `DEPTH` is the gene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.config import Choice
from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.core.tasks import tasks_that
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene
from everyformer.genes.positions import POSITION

if TYPE_CHECKING:
    from everyformer.blocks.depth import Depth

DEPTHS: Registry[type[Depth]] = Registry(
    "depth", __name__, "everyformer.blocks.depth:Depth", helpers=("early_exits", "exit_targets")
)


class DepthGene(Gene):
    """Order in which blocks are applied, how often, and for which tokens."""

    name = "depth"
    question = (
        "how often blocks are applied: plain, each once; repeat, all of them several times; "
        "universal, until a token halts; calm and depth-adaptive, each once, until a token leaves"
    )
    training_detail = True

    def build_for_stack(self, plan: ModelConfig) -> Depth:
        sizes: dict[str, Any] = {"width": plan.width, "layers": plan.layers}
        sizes["adds_positions"] = self.adds_positions(plan)
        depth: Depth = self.make(plan.genes[self.name], **sizes)
        return depth

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse what a depth that drives the blocks contradicts."""
        choice = self.typed(plan.genes[self.name])
        if not DEPTHS.get(str(choice.name)).drives:
            return
        if plan.genes["residual"].name == "reversible":
            raise GeneError(
                f"depth '{choice.name}' changes the stream of single tokens between steps, from "
                "which residual 'reversible' could not compute activations again: use 'pre' or "
                "'post'"
            )
        if self.exits(plan):
            self._check_exits(plan, str(choice.name), mixers)
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

    def _check_exits(self, plan: ModelConfig, name: str, mixers: Sequence[Any]) -> None:
        """Refuse what tokens cannot leave early with."""
        task = plan.does
        if not (task.continues or task.translates):
            raise GeneError(
                f"depth '{name}' lets a token leave as soon as the next one is known (tasks "
                f"{tasks_that('continues')} and {tasks_that('translates')}); task '{plan.task}' "
                "does not ask for that"
            )
        for mixer in mixers:
            if not mixer.can_append():
                raise GeneError(
                    f"depth '{name}' needs the keys of tokens that have left without their "
                    f"outputs, and mixer '{mixer.name}' computes both or neither: use 'attention'"
                )
        if plan.genes["memory"].name is not None:
            raise GeneError(
                f"memory '{plan.genes['memory'].name}' keeps what layers make of all tokens, but "
                f"with depth '{name}' some leave before: leave either out"
            )
        if POSITION.acts_on(plan) == "layers":
            raise GeneError(
                f"position '{plan.genes[POSITION.name].name}' adds another vector before each "
                f"layer, and a token that has left with depth '{name}' is copied as it is: use "
                "'rope' or another that is added once"
            )
        options = self.typed(plan.genes[self.name]).options
        if getattr(options, "exits", None) == "sequence" and not task.encodes:
            raise GeneError(
                f"exits 'sequence' of depth '{name}' are decided by what an encoder has read, and "
                f"task '{plan.task}' has none: use 'geometric'"
            )

    def exits(self, plan: ModelConfig) -> bool:
        """True if tokens leave before the last layer."""
        return DEPTHS.get(str(plan.genes[self.name].name)).learned_as is not None

    def learned_as(self, choice: Choice) -> Choice:
        known = DEPTHS.get(str(choice.name)).learned_as
        return choice if known is None else Choice(known)

    def adds_positions(self, plan: ModelConfig) -> bool:
        """True if positions are added to what enters the layers, at every step."""
        choice = self.typed(plan.genes[self.name])
        if not DEPTHS.get(str(choice.name)).places:
            return False
        order, position = choice.get("order"), plan.genes[POSITION.name].name
        return position is None if order is None else order == "sinusoid"


DEPTH = DepthGene(DEPTHS, "plain", needed=True)
