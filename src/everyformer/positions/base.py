"""`Position`: the hooks through which order enters a model.

Positions are explicit integer tensors (B or 1, L), never inferred from a shape inside a hook. That
one rule makes every position right with states, left padding, chunks and packed documents.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from everyformer.core.errors import ShapeError


class Position(nn.Module):
    """Base of all positions; each overrides the hook of the place it ``acts_on``.

    Constructor of every concrete position, keyword-only: ``width`` (of the model), ``heads``,
    ``head_dim``, ``max_length``, ``options`` (its own frozen dataclass).
    """

    name: ClassVar[str]
    acts_on: ClassVar[Literal["embeddings", "queries-keys", "scores"]]
    max_length: int | None = None

    def embed(self, positions: Tensor) -> Tensor:
        """What is added to the embeddings at ``positions`` (B or 1, L): (B or 1, L, width)."""
        raise NotImplementedError(f"{self.name} does not act on embeddings")

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (B, H, L, D) turned to their ``positions`` (B or 1, L)."""
        raise NotImplementedError(f"{self.name} does not act on queries and keys")

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Added to the scores of any rectangular block: (B or 1, H, L, S)."""
        raise NotImplementedError(f"{self.name} does not act on scores")

    def check(self, positions: Tensor) -> None:
        """Refuse positions beyond a table (eager CPU calls see states too; others, the length)."""
        if self.max_length is None:
            return
        known = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        longest = int(positions.max()) + 1 if known else positions.shape[1]
        if longest > self.max_length:
            raise ShapeError(
                f"position '{self.name}' has a table of max_length={self.max_length}, but position "
                f"{longest - 1} was asked for: build it with max_length={longest} or more, or use "
                "position='sinusoidal' or 'rope', which have no table"
            )
