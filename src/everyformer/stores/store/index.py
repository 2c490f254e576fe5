"""Search in a store: every key is looked at (`everyformer.stores.store.exact`).

distances, rows = Index(store).search(queries, k=32)
"""

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError, ShapeError
from everyformer.stores.store.exact import Distance, ExactSearch, Hits
from everyformer.stores.store.store import Store


class Index:
    """A search over the rows of a store.

    Args:
        distance: l2 is the squared Euclidean one; cosine 1 - cos, which is 1 for a vector of zeros.
    """

    def __init__(self, store: Store, distance: Distance = "l2") -> None:
        self.store = store
        self._exact = ExactSearch(store.key_tensor, distance)

    @torch.no_grad()
    def search(self, queries: Tensor, k: int) -> Hits:
        """The ``k`` nearest keys of every one of ``queries`` (N, width), floats on any device.

        Returns:
            distances (N, k) float32 and rows (N, k) int64 on the CPU, nearest first; equal
            distances are in the order of rows.

        Raises:
            ShapeError: another width, or no floats.
            ConfigError: k is below 1, or larger than the store.
            DataError: a query is not finite.
        """
        width = self.store.width
        if queries.ndim != 2 or queries.shape[1] != width or not queries.is_floating_point():
            raise ShapeError(
                f"queries must be floats of shape (N, {width}), not {queries.dtype} of "
                f"{tuple(queries.shape)}"
            )
        if not 1 <= k <= len(self.store):
            raise ConfigError(
                f"`k={k:,}` neighbours are requested from a store of {len(self.store):,} keys: "
                "give k from 1 up to that"
            )
        vectors = queries.detach().to("cpu", torch.float32)
        if not vectors.isfinite().all():
            row = int((~vectors.isfinite()).any(-1).int().argmax())
            raise DataError(f"query {row:,} is not finite: look at the model that computes it")
        if not len(vectors):
            return Hits(torch.empty(0, k), torch.empty(0, k, dtype=torch.long))
        return self._exact.search(vectors, k)
