"""kNN-LM: a store is read with the finished model; see `everyformer.models.knn_lm`.

    p(y) = lambda p_kNN(y) + (1 - lambda) p_LM(y)

Training is the model's own. Behind it the training text is stored, and lambda and T are chosen on
a chunk of it that is not.

Source: Khandelwal et al. 2020, arXiv 1911.00172.
"""

from dataclasses import dataclass
from typing import Annotated

from everyformer.core.bounds import Affects, Count
from everyformer.core.errors import GeneError
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVALS, KnnOptions, StoreOptions
from everyformer.genes.retrieval.base import Retrieval


@dataclass(frozen=True)
class KnnRunOptions(KnnOptions, StoreOptions):
    """Options of `Knn`; k is no more than are stored."""

    tune: Annotated[Count, Affects("results")] = 8192
    """tokens at the end of the training text that are not stored, to choose by"""


@RETRIEVALS.register("knn")
class Knn(Retrieval):
    """A store that is read with the finished model."""

    name = "knn"
    Options = KnnRunOptions
    cost = (
        "stores a part of the training text behind its training and looks neighbours up there, "
        "which no time of a token here counts"
    )

    def check(self, plan: ModelConfig) -> None:
        memory = plan.genes["memory"].name
        if memory is not None:
            raise GeneError(
                f"retrieval 'knn' has keys of single windows, but memory '{memory}' passes from "
                "window to window: leave one of them out, or take retrieval 'spalm'"
            )
