"""Retrieval: how a language model uses neighbours of a store; `RETRIEVAL` is the gene.

One file each. What stores are is said in `everyformer.retrieval`, which knows nothing of
models; who makes and searches them for a run in `everyformer.datastores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.genes.retrieval.base import Retrieval

RETRIEVALS: Registry[type[Retrieval]] = Registry("retrieval", __name__)


class RetrievalGene(Gene):
    """What a language model looks up in a store of its training text, and what becomes of it."""

    name = "retrieval"
    question = (
        "what is looked up in a store of the training text: knn mixes what followed similar "
        "contexts into the prediction, spalm into the state it is made from; none: nothing"
    )
    holds_weights = False

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse tasks without a text that goes on, and what the alternative contradicts."""
        retrieval = self.of(plan)
        if retrieval is None:
            return
        if not TASKS[plan.task].continues:
            raise GeneError(
                f"retrieval '{retrieval.name}' looks up which token comes next in a text (task "
                f"lm); task '{plan.task}' does not ask for that"
            )
        retrieval.check(plan)

    def of(self, plan: ModelConfig) -> Retrieval | None:
        """What a plan's models look up; None: nothing."""
        retrieval: Retrieval | None = self.make(plan.genes[self.name])
        return retrieval

    def learned_without(self, choice: Any) -> dict[str, Any]:
        return {} if choice.name is None else dict(RETRIEVALS.get(choice.name).learned_without)


RETRIEVAL = RetrievalGene(RETRIEVALS)
