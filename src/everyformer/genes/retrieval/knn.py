"""kNN-LM: a store is read beside the finished model; see `everyformer.models.knn_lm`.

    p(y) = lambda p_kNN(y) + (1 - lambda) p_LM(y)

Training is the model's own. Behind it the training text is stored, and lambda and T are chosen on
a stretch of it that is not.

Source: Khandelwal et al. 2020, arXiv 1911.00172.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Affects, Count, Positive, Share
from everyformer.core.errors import GeneError
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVALS
from everyformer.genes.retrieval.base import Retrieval, StoreOptions


@dataclass(frozen=True)
class KnnOptions(StoreOptions):
    """Options of `Knn`."""

    k: Annotated[Count, Affects("results")] = 1024
    """neighbours of a token, no more than are stored"""
    weight: Annotated[Share | None, Affects("results")] = None
    """lambda: 0 leaves the store out, 1 the model, and then no token is possible that no neighbour
    has (default: by EM on the n tokens that `tune` keeps apart, at most n / (n + 1))"""
    temperature: Annotated[Positive | None, Affects("results")] = None
    """T, by which distances are divided (default: the best of several there)"""
    distance: Annotated[Literal["squared", "root", "cosine"], Affects("results")] = "squared"
    """d: the squared Euclidean distance, its root, or 1 - cos"""
    tune: Annotated[Count, Affects("results")] = 8192
    """tokens at the end of the training text that are not stored, to choose by"""


@RETRIEVALS.register("knn")
class Knn(Retrieval):
    """A store beside the model."""

    name = "knn"
    Options = KnnOptions
    beside = (
        "stores a part of the training text behind its training and looks neighbours up there, "
        "which no time of a token here counts"
    )
    companion = "knn_run"

    def check(self, plan: ModelConfig) -> None:
        memory = plan.genes["memory"].name
        if memory is not None:
            raise GeneError(
                f"retrieval 'knn' has keys of single windows, but memory '{memory}' goes on from "
                "window to window: leave one of them out, or take retrieval 'spalm'"
            )
