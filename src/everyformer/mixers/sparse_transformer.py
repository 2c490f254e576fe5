"""Sparse Transformer: attention factorised into two sparse sets that together reach every token.

    strided   A1 = {j : 0 <= i - j < l},  A2 = {j <= i : (i - j) mod l = 0}
    fixed     A1 = {j <= i : floor(j/l) = floor(i/l)},  A2 = {j <= i : l - c <= j mod l}

l = ``stride`` (about the square root of the length), c = ``columns``. With ``columns`` summaries a
head, heads in ``groups`` read different ones: those of group g are [l - (g+1) c, l - g c). The sets
are used layer by layer (``interleave``, the first layer A1), as one softmax over their union
(``merged``), or head by head (``heads``). Both ways round, the bidirectional form drops j <= i.

Cost: O(L l + L^2 / l), O(L sqrt L) at l = sqrt L. State: strided, all keys; fixed, the last block
and the summary columns. A query of fixed A2 before the first summary sees nothing and gives 0
(``include_self`` shows it itself).

Source: Child et al. 2019, arXiv 1904.10509, sections 4 and 5; the released kernels take l tokens in
A1 of the strided form, the paper's formula l + 1 (``inclusive``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from everyformer.core.errors import GeneError
from everyformer.core.mixer import Mixer, set_options
from everyformer.engines.patterns import Blocks, Columns, Near, Pattern
from everyformer.engines.plan import SparsePlan
from everyformer.engines.sparse import Backend
from everyformer.mixers import MIXERS
from everyformer.mixers._patterned import PatternAttention
from everyformer.positions.base import Position


@dataclass(frozen=True)
class SparseTransformerOptions:
    pattern: Literal["strided", "fixed"] = "strided"
    """which pair of sets"""
    mode: Literal["merged", "heads", "interleave"] = "merged"
    """one softmax over both sets; every other head the second; every other layer the second"""
    stride: int = 64
    """l, about the square root of the length; of pictures the numbers in a row"""
    columns: int = 8
    """c, summary columns of the fixed pattern"""
    groups: int = 1
    """groups of heads with summary columns of their own"""
    inclusive: bool = False
    """A1 of the strided pattern with l + 1 tokens, as the formula is printed"""
    include_self: bool = False
    """a token always sees itself in A2 of the fixed pattern"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: float = 0.0
    """dropout on the weights in training (the paper has none)"""
    backend: Backend = "auto"
    """how it is computed: auto, dense, blocked or flex"""


@MIXERS.register("sparse-transformer")
class SparseTransformer(PatternAttention):
    """Factorised attention over (B, L, width), with its projections.

    Args:
        width: channels of x.
        heads: H.
        causal: whether later tokens are hidden.
        max_length: not needed, any length works.
        channels: of the heads together, where other mixers hold the rest (default: width).
        options: `SparseTransformerOptions` or a dictionary.

    Raises:
        GeneError: a stride, columns or groups that cannot be.
    """

    name = "sparse-transformer"
    Options = SparseTransformerOptions

    def __init__(
        self, *, width: int, heads: int = 1, causal: bool = False, max_length: int | None = None,
        channels: int | None = None, position: Position | None = None, options: Any = None,
    ) -> None:  # fmt: skip
        o: SparseTransformerOptions = set_options(SparseTransformerOptions, self.name, options)
        super().__init__(
            (width, channels, heads), causal, position, o.bias, o.attention_dropout, o.backend
        )
        self.options = o
        if o.stride < 1 or o.columns < 1 or not 1 <= o.groups * o.columns <= o.stride:
            raise GeneError(
                f"sparse-transformer: groups={o.groups} of columns={o.columns} must lie in one "
                f"stride={o.stride}, all at least 1"
            )
        self.layer = self.layers = 0
        self._plan = self._planned()

    def join(self, first: Mixer) -> None:
        """Counts the layers of a stack, of which the odd ones interleave the second set."""
        assert isinstance(first, SparseTransformer)
        first.layers += 1
        self.layer = first.layers
        self._plan = self._planned()

    def plan(self, length: int) -> SparsePlan:
        return self._plan

    def _planned(self) -> SparsePlan:
        unions = tuple(self._union(head) for head in range(self.heads))
        return SparsePlan(unions[:1] if len(set(unions)) == 1 else unions)

    def _union(self, head: int) -> tuple[Pattern, ...]:
        """What one head sees."""
        first, second = self._sets(head % self.options.groups)
        if self.options.mode == "merged":
            return (*first, *second)
        turn = head if self.options.mode == "heads" else self.layer
        return second if turn % 2 else first

    def _sets(self, group: int) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        o, causal = self.options, self.causal
        if o.pattern == "strided":
            back = o.stride - 1 + o.inclusive
            return (Near(before=back, after=back, causal=causal),), (
                Near(dilation=o.stride, causal=causal),
            )
        last = o.stride - group * o.columns
        summary = Columns(period=o.stride, first=last - o.columns, last=last, causal=causal)
        own = (Near(before=0, causal=True),) if o.include_self else ()
        return (Blocks(size=o.stride, causal=causal),), (*own, summary)
