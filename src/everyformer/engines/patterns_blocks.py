"""Patterns of whole blocks that go on for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from everyformer.core.errors import GeneError
from everyformer.engines.layouts import Tables, Windows
from everyformer.engines.patterns import Part, Pattern


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

    def _shown(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        here = i // self.size
        read = here - self.shift
        if self.wrap:
            read = torch.where(read < 0, here, read)
        return j // self.size == read

    def parts(self, length: int) -> Iterator[Part]:
        blocks = torch.arange(-(-length // self.size))
        read = blocks - self.shift
        if self.wrap:
            read = torch.where(read < 0, blocks, read)
        yield Windows(self.size), Tables(self.size, read.clamp(min=-1)[None, :, None])

    @property
    def span(self) -> int | None:
        return (self.shift + 1) * self.size - 1
