"""Retrieval: the gene of language models that use neighbours of a store, one file each.

Stores on the disk are `everyformer.stores.store`, which knows nothing of models; runs that make
and search them `everyformer.stores`. Options of both are here, which the command line reads
without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from everyformer.core.bounds import Affects, Count, Positive, Several, Share
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.genes.retrieval.base import Retrieval

K, WEIGHT, TEMPERATURE = 1024, 0.25, 1.0
"""k and T as published; lambda of the paper's larger text"""


@dataclass(frozen=True)
class StoreOptions(Options):
    """The store that a run makes of its training text."""

    gone: ClassVar[dict[str, Any]] = {"kind": "auto"}

    size: Annotated[Count, Affects("results")] = 65_536
    """tokens of the training text that are stored: chunks of it, at equal distances"""
    context: Annotated[Several | None, Affects("results")] = None
    """tokens of the windows in which the text is read for keys (default: --data.length); they
    overlap by half, so that a key knows at least half a window"""
    tap: Annotated[str, Affects("results")] = "ffn-input:-1"
    """what of the model a key is: ffn-input, attention-output or block-output, and a layer"""


@dataclass(frozen=True)
class KnnOptions(Options):
    """The mixture of what followed k neighbours into a prediction."""

    gone: ClassVar[dict[str, Any]] = {"kind": "auto", "exclude_self": False}

    k: Annotated[Count | None, Affects("results")] = None
    """neighbours of a token (default: 1,024, or all of a store with fewer keys)"""
    weight: Annotated[Share | None, Affects("results")] = None
    """lambda: 0 leaves the store out, 1 the model, and then no token is possible that no neighbour
    has (default: 0.25; of a run with a store, by EM on n tokens kept apart, at most n / (n + 1))"""
    temperature: Annotated[Positive | None, Affects("results")] = None
    """T, by which distances are divided (default: 1; of a run with a store, the best of several)"""
    distance: Annotated[Literal["squared", "root", "cosine"], Affects("results")] = "squared"
    """d: the squared Euclidean distance, its root, or 1 - cos"""

    @property
    def lambda_(self) -> float:
        return WEIGHT if self.weight is None else self.weight

    @property
    def divisor(self) -> float:
        """T"""
        return self.temperature or TEMPERATURE

    def resolved(self, keys: int) -> Self:
        """Options with numbers for a store of so many ``keys``."""
        k = self.k or min(K, keys)
        return replace(self, k=k, weight=self.lambda_, temperature=self.divisor)


RETRIEVALS: Registry[type[Retrieval]] = Registry(
    "retrieval", __name__, "everyformer.genes.retrieval.base:Retrieval"
)


class RetrievalGene(Gene):
    """Neighbours that a language model looks up in a store of its training text, or none."""

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
        if not plan.does.continues:
            raise GeneError(
                f"retrieval '{retrieval.name}' looks up which token comes next in a text (task "
                f"lm); task '{plan.task}' does not ask for that"
            )
        retrieval.check(plan)

    def of(self, plan: ModelConfig) -> Retrieval | None:
        """The retrieval of a plan's models; None: they look nothing up."""
        retrieval: Retrieval | None = self.make(plan.genes[self.name])
        return retrieval

    def learned_without(self, choice: Any) -> dict[str, Any]:
        return {} if choice.name is None else dict(RETRIEVALS.get(choice.name).learned_without)


RETRIEVAL = RetrievalGene(RETRIEVALS)
