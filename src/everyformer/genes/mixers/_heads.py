"""Row mixers with heads: the parts that their members share."""

from __future__ import annotations

from torch import Tensor, nn

from everyformer.core.mixer import heads_divide
from everyformer.engines.projections import HeadProjections
from everyformer.genes.mixers.base import StreamingMixer


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
        """Rate at which weights are dropped, 0 outside training."""
        return float(self.options.attention_dropout) if self.training else 0.0
