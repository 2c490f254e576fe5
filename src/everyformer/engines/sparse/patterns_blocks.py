"""Patterns of whole blocks that go on for ever."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from everyformer.core.errors import GeneError
from everyformer.engines.sparse.layouts import Chosen, Windows
from everyformer.engines.sparse.patterns import Part, Pattern


@dataclass(frozen=True, kw_only=True)
class PastBlocks(Pattern):
    """The block of ``size`` keys that lies ``shift`` blocks before the query's.

    Where there is none: the query's own block if ``wrap``, else nothing. Causal Blockwise.
    """

    kind = "past-blocks"
    size: int
    shift: int = 0
    wrap: bool = True

    def __post_init__(self) -> None:
        if self.size < 1 or self.shift < 0:
            raise GeneError(
                f"a block has at least 1 token, not {self.size}, and lies at least 0 blocks back, "
                f"not {self.shift}"
            )

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        block = i // self.size
        read = block - self.shift
        if self.wrap:
            read = torch.where(read < 0, block, read)
        return j // self.size == read

    def parts(self, length: int) -> Iterator[Part]:
        back = self.shift * self.size
        yield Windows(self.size), Windows(self.size, back, -back)
        if self.wrap and self.shift:
            first = torch.arange(min(self.shift, -(-length // self.size)) * self.size)
            own = torch.where(first < length, first, -1).unflatten(0, (-1, self.size))
            yield Chosen(own), Chosen(own)

    @property
    def span(self) -> int | None:
        return (self.shift + 1) * self.size - 1

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return torch.ones_like(j, dtype=torch.bool)
