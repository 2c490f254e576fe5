"""A store as a language model reads it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes.retrieval import KnnOptions
from everyformer.models.base import Model
from everyformer.models.knn_lm import KnnLanguageModel, Neighbours
from everyformer.models.language import LanguageModel
from everyformer.stores.indexing import origin_of
from everyformer.stores.store.exact import Distance
from everyformer.stores.store.index import Index
from everyformer.stores.store.store import Store


class StoreReader:
    """The `everyformer.models.knn_lm.Reader` of an index."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def read(self, queries: Tensor, k: int) -> Neighbours:
        """The nearest keys of ``queries`` (N, width), on their device."""
        hits = self.index.search(queries, k)
        values = torch.from_numpy(self.index.store.following(hits.rows)).long()
        return Neighbours(*(t.to(queries.device) for t in (hits.distances, values)))


def with_store(
    model: Model,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    options: KnnOptions,
    *,
    say: Callable[[str], None],
) -> KnnLanguageModel:
    """``model`` reading the store in ``folder``, which it has made itself.

    Raises:
        CheckpointError: the store is of another model or tokenizer.
        UnsupportedError: the model is no language model.
    """
    made = Store.open(folder, verify=False).record.origin
    # another model may have no such tap
    origin = origin_of(model, tokenizer, "ffn-input:-1")
    made.check(origin, Path(folder), taps=False)
    assert isinstance(model, LanguageModel)
    store = Store.open(folder, replace(origin, tap=made.tap))
    say(store.describe())
    index = Index(store, searched_by(options))
    return KnnLanguageModel(model, StoreReader(index), options.resolved(len(store)), made.tap)


def searched_by(options: KnnOptions) -> Distance:
    """Distance of the search; the root has the order of the squares."""
    return "cosine" if options.distance == "cosine" else "l2"
