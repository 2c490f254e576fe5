"""Positions that add a number of the distance to scores, and what they become without one.

One that adds a number for every distance and head overrides `by_distance` alone.
"""

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from everyformer.core.shared import shared
from everyformer.core.trials import Make, Pair, output
from everyformer.engines.softmax.distances import Distances
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import Cap, Parts, ScorePosition


class AdditivePosition(ScorePosition):
    """Base of positions that add a number of the distance to every score: `by_distance`."""

    additive = True

    @abstractmethod
    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Addends (H, ...) of the scores of pairs that are ``distance`` (any shape) apart."""

    @final
    def curve(self, distance: Tensor) -> tuple[str, Tensor] | None:
        return "added to the score", self.by_distance(distance, torch.float32)

    @final
    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        return q, shared(self.by_distance, pairs.span(), dtype)[None, :, None]

    @final
    def distances(self, q: Tensor, pairs: Pairs, scale: float) -> Distances:
        numbers = shared(self.by_distance, pairs.span(), torch.float32)
        return Distances(q * scale, numbers=numbers[:, : pairs.seen])

    @final
    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        return (pairs.tile(self.by_distance(pairs.span(), dtype)),)

    @final
    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        return (pairs.cut(parts[0]),)

    @final
    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        return products.add_(pairs.of_cut(parts[0]))

    @final
    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        content = cap(scale * (k @ q[:, :, None]).squeeze(-1))
        return content + self.by_distance(distance, q.dtype)[head]


def at_zero(make: Make, position: str, number: float, **own: Any) -> Pair:
    """Law 5: with ``number`` for all that it has learned, a position leaves attention as it is."""
    placed, plain = make("attention", position=position, position_options=own), make("attention")
    plain.load_state_dict(placed.state_dict(), strict=False)
    with torch.no_grad():
        for parameter in placed.get_submodule("position").parameters():
            parameter.fill_(number)
    return f"{position} at its zero is attention", output(placed), output(plain)
