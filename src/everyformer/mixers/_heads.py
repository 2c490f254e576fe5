"""Mixers that continue a text, and those with heads: the parts that their members share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError
from everyformer.core.mixer import Mixer, heads_divide, set_options
from everyformer.engines.projections import HeadProjections
from everyformer.memory.base import Memory
from everyformer.mixers.base import RowMixer
from everyformer.positions.base import Position


class BuiltMixer(Mixer):
    """Base of mixers with one constructor and one way to begin a state; a member adds both hooks.

    Args:
        width: channels of x.
        heads: H; of what the member has for each head.
        causal: whether a token sees only itself and earlier ones.
        max_length: longest sequence; needed where there is a table over positions.
        channels: of the heads together, where other mixers hold the rest (default: width).
        position: acts on queries, keys or scores, in members that take one.
        memory: rows of the past, in members that read one.
        options: the member's, or a dictionary.
    """

    Options: ClassVar[type[Any]]
    options: Any
    position: Any
    out: nn.Linear

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        causal: bool = False,
        max_length: int | None = None,
        channels: int | None = None,
        position: Position | None = None,
        memory: Memory | None = None,
        options: Any = None,
    ) -> None:
        super().__init__()
        self.options = set_options(self.Options, self.name, options)
        if channels is not None and not self.shares_heads:
            raise GeneError(f"mixer '{self.name}' cannot be some of the heads of a layer")
        if position is not None and not self.accepts_positions:
            raise GeneError(
                f"mixer '{self.name}' takes no position inside; '{position.name}' was given"
            )
        if memory is not None and not self.accepts_memory:
            raise GeneError(f"mixer '{self.name}' reads no memory; '{memory.name}' was given")
        self.width, self.heads, self.causal = width, heads, causal
        self.channels, self.position, self.memory = channels or width, position, memory
        self.alone = channels is None
        self.build(max_length)

    def build(self, max_length: int | None) -> None:
        """Make the parameters, by the sizes and options that are attributes by now."""
        raise NotImplementedError


class StreamingMixer(RowMixer, BuiltMixer):
    """Base of row mixers that continue a text."""

    honours = frozenset({"keep", "documents"})

    def check_seen(self, seen: Tensor) -> None:
        """Refuse ``seen`` (B,) tokens beyond this mixer's table; a compiled graph cannot ask."""
        if not torch.compiler.is_compiling():
            self.check_length(int(seen.max()))


class HeadMixer(StreamingMixer):
    """Base of row mixers with heads (B, H, L, D) of one size."""

    def build(self, max_length: int | None) -> None:
        self.head_dim = heads_divide(self.channels, self.heads, self.name)

    def add_projections(self, bias: tuple[str, ...], key_dim: int | None = None) -> None:
        """Projections of x to queries, keys and values, and of all heads to the output.

        ``key_dim``: channels of a head's queries and keys (default: those of its values).
        """
        sizes = (key_dim or self.head_dim, self.head_dim)
        self.project = HeadProjections((self.width,) * 3, (self.heads, self.heads), sizes, bias)
        self.out = nn.Linear(self.channels, self.width, bias="output" in bias)
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def merge(self, y: Tensor) -> Tensor:
        """The output (B, L, width) of what the heads give, (B, H, L, D)."""
        return self.out(y.transpose(1, 2).flatten(2))

    @property
    def dropout(self) -> float:
        """Of weights, as this mode has it."""
        return float(self.options.attention_dropout) if self.training else 0.0
