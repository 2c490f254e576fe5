"""Relative positions in attention scores: a bias, or more, by the distance i - j alone.

`everyformer.engines.softmax.blocks` computes attention block by block and asks for the parts below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor

from everyformer.core.position import Position
from everyformer.core.shared import shared
from everyformer.engines.softmax.distances import Distances
from everyformer.engines.softmax.pairs import Pairs

Parts = tuple[Tensor, ...]
"""tensors of a position for all blocks of a call; the first dimension of each is H or 1"""
Cap = Callable[[Tensor], Tensor]
"""soft cap of the scores of contents"""


class ScorePosition(Position):
    """Base of relative positions that change attention scores (and maybe values)."""

    acts_on = "scores"
    additive: bool = False
    """whether `by_distance` says all that it does"""

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Addends (H, ...) of the scores of pairs that are ``distance`` (any shape) apart."""
        raise NotImplementedError(f"{self.name} adds nothing that depends on the distance alone")

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        """Tensors that all blocks of a call share; the first dimension of each is H or 1.

        ``scale`` is the factor that queries carry already when `score` gets them.
        """
        raise NotImplementedError

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        """A block's part of the tensors of `prepare`, all of it views."""
        raise NotImplementedError

    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor] | None:
        """For one query (B, H, 1, D), not scaled, at the last key: what is compared with the keys,
        and addends (B or 1, H, 1, S) of the scaled scores; None where that does not say all."""
        return None

    def distances(self, q: Tensor, pairs: Pairs, scale: float) -> Distances | None:
        """Queries (B, H, L, D), not scaled, and distances as kernels take them, of a
        call; None: they do not know this position."""
        return None

    def content(self, q: Tensor, parts: Parts) -> Tensor:
        """The queries (B, H, L, D), scaled, that are compared with the keys."""
        return q

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        """Scores (B, H, L, S) of a block from its scaled products, which it may overwrite."""
        raise NotImplementedError

    def values(self, weights: Tensor, parts: Parts, pairs: Pairs) -> Tensor | None:
        """Addends of the heads' outputs (B, H, L, Dv) under ``weights`` (B, H, L, S)."""
        return None

    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        """The definition for one query and head: scores (B, S).

        q (B, D) is not scaled, k is (B, S, D), ``distance`` (B or 1, S) i - j; ``cap`` bounds the
        scores of contents.
        """
        raise NotImplementedError

    def literal_values(self, weights: Tensor, distance: Tensor, head: int) -> Tensor | None:
        """The definition of what is added to one query's output (B, Dv) under weights (B, S)."""
        return None

    @final
    def of_heads(self, chosen: Sequence[int]) -> ScorePosition:
        return SomeHeads(self, chosen)


class SomeHeads(ScorePosition):
    """View of some heads of a position that acts on scores; its parameters stay shared."""

    name = "some-heads"

    def __init__(self, whole: ScorePosition, chosen: Sequence[int]) -> None:
        super().__init__()
        self.whole, self.chosen, self.heads = whole, list(chosen), len(chosen)
        self.causal, self.additive = whole.causal, whole.additive
        self.key_dim, self.value_dim = whole.key_dim, whole.value_dim

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return self.whole.by_distance(distance, dtype)[self.chosen]

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        parts = self.whole.prepare(pairs, scale, dtype)
        return tuple(t if t.shape[0] == 1 else t[self.chosen] for t in parts)

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        return self.whole.cut(parts, pairs)

    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor] | None:
        if not self.additive:
            return None
        dtype = torch.promote_types(q.dtype, torch.float32)
        bias = shared(self.whole.by_distance, pairs.span(), dtype)
        return q, bias[self.chosen][None, :, None]

    def content(self, q: Tensor, parts: Parts) -> Tensor:
        return self.whole.content(q, parts)

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        return self.whole.score(products, q, k, parts, pairs)

    def values(self, weights: Tensor, parts: Parts, pairs: Pairs) -> Tensor | None:
        return self.whole.values(weights, parts, pairs)

    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        return self.whole.reference(q, k, distance, self.chosen[head], scale, cap)

    def literal_values(self, weights: Tensor, distance: Tensor, head: int) -> Tensor | None:
        return self.whole.literal_values(weights, distance, self.chosen[head])

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        slopes = self.whole.slopes_of(dtype, device)
        return None if slopes is None else slopes[self.chosen]
