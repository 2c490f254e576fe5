"""A store as a language model reads it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.datastores.indexing import origin_of
from everyformer.datastores.own import search_apart
from everyformer.datastores.store.index import Index, open_index
from everyformer.datastores.store.options import Distance, SearchOptions
from everyformer.datastores.store.store import Store
from everyformer.genes.retrieval import KnnOptions, MixtureOptions
from everyformer.models.base import Model
from everyformer.models.knn_lm import KnnLanguageModel, Neighbours, Scored
from everyformer.models.language import LanguageModel


class StoreReader:
    """The `everyformer.models.knn_lm.Reader` of an index.

    Args:
        separator: the token that ends a document in texts of several.
    """

    def __init__(self, index: Index, separator: int | None = None) -> None:
        self.index, self.separator = index, separator

    def read(self, queries: Tensor, k: int, scored: Scored | None = None) -> Neighbours:
        """The nearest keys of ``queries`` (N, width), on their device."""
        if scored is None:
            hits = self.index.search(queries, k)
        else:
            hits = search_apart(self.index, queries, k, scored, self.separator)
        values = torch.from_numpy(self.index.store.following(hits.rows)).long()
        return Neighbours(*(t.to(queries.device) for t in (hits.distances, values, hits.rows)))


def with_store(
    model: Model,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    options: KnnOptions,
    index: SearchOptions | None = None,
    *,
    say: Callable[[str], None],
) -> KnnLanguageModel:
    """``model`` reading the store in ``folder``, which it has made itself.

    An index of a kind that is named and kept is built where there is none yet.

    Raises:
        CheckpointError: the store is of another model or tokenizer.
        ConfigError: the index is of another distance.
        UnsupportedError: the model is no language model.
    """
    made = Store.open(folder, verify=False).record.origin
    # another model may have no such tap
    origin = origin_of(model, tokenizer, "ffn-input:-1")
    made.check(origin, Path(folder), taps=False)
    assert isinstance(model, LanguageModel)
    store = Store.open(folder, replace(origin, tap=made.tap))
    distance = searched_by(options)
    index = index or SearchOptions()
    if index.distance not in (SearchOptions().distance, distance):
        raise ConfigError(
            f"neighbours are to be found by distance '{index.distance}', but read by "
            f"'{options.distance}': say it once, by --knn.distance"
        )
    opened = open_index(store, replace(index, distance=distance), say=say)
    separator = None if tokenizer is None else tokenizer.separator
    say(f"{store.describe()}; {opened.describe()}")
    options = options.resolved(len(store))
    return KnnLanguageModel(model, StoreReader(opened, separator), options, made.tap)


def searched_by(options: MixtureOptions) -> Distance:
    """Distance of the search; the root has the order of the squares."""
    return "cosine" if options.distance == "cosine" else "l2"
