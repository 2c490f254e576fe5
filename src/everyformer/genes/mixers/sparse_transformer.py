"""Sparse Transformer: attention factorised into two sparse sets that together reach every token.

    strided   A1 = {j : 0 <= i - j < l},  A2 = {j <= i : (i - j) mod l = 0}
    fixed     A1 = {j <= i : floor(j/l) = floor(i/l)},  A2 = {j <= i : l - c <= j mod l}

l = ``stride`` (about the square root of the length), c = ``columns``. With ``columns`` summaries a
head, heads in ``groups`` read different ones: those of group g are [l - (g+1) c, l - g c). The sets
are used as one softmax over their union (``merged``), or as ``sets`` says layer by layer
(``interleave``, the first layer A1) or head by head (``heads``). The released networks of pictures
have mode='interleave', sets=('second', 'first', 'first', 'first'). The bidirectional form drops
j <= i.

Cost: O(L l + L^2 / l), O(L sqrt L) at l = sqrt L. State: strided, all keys; fixed, the last block
and the summary columns. A query of fixed A2 before the first summary sees nothing and gives 0.

The start is every member's own: the paper's (``--model.init sparse-transformer``), made for stacks
of up to 128 layers that are trained for long, begins with an output layer of 0 and falls behind in
short trainings (150 steps on text: 2.85 nats a byte against 2.49, and 2.40 with an output layer
that does not begin at 0).

Source: Child et al. 2019, arXiv 1904.10509, sections 4 and 5; A1 of the strided form has l tokens,
as the released kernels take it (the paper's formula: l + 1).
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from everyformer.core.bounds import Count, When
from everyformer.core.errors import GeneError
from everyformer.core.mixer import Mixer, Picture
from everyformer.core.trials import LONGEST, Trials, are_attention
from everyformer.engines.sparse.panels import Titled
from everyformer.engines.sparse.patterns import Blocks, Columns, Near, Pattern
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.patterned import PatternOptions, PlanAttention

Set = Literal["first", "second", "both"]


@dataclass(frozen=True)
class SparseTransformerOptions(PatternOptions):
    pattern: Literal["strided", "fixed"] = "strided"
    """which pair of sets"""
    mode: Literal["merged", "heads", "interleave"] = "merged"
    """one softmax over both sets; or those of ``sets``, head by head or layer by layer"""
    sets: Annotated[tuple[Set, ...], When("mode", "heads", "interleave")] = ("first", "second")
    """what the heads or the layers see in turn, unless merged"""
    stride: Count | None = None
    """l (default: the tokens in a row of a picture, else sqrt(max_length), rounded up, or 64)"""
    columns: Annotated[Count | None, When("pattern", "fixed")] = None
    """c, summary columns of the fixed pattern (default: 8, at most l / 4)"""
    groups: Annotated[Count, When("pattern", "fixed")] = 1
    """groups of heads with summary columns of their own"""
    key_dim: Count | None = None
    """channels of a head's queries and keys (default: as many as of its values; released networks
    of pictures have half of them)"""
    gone: ClassVar[dict[str, Any]] = {"inclusive": False}


LIMITS = {
    f"sets ({pattern}) with a stride of {stride}": {"stride": stride, "pattern": pattern, **own}
    for stride in (LONGEST, 1)
    for pattern, own in (("strided", {}), ("fixed", {"columns": 1}))
}
TRIALS = Trials(
    variants=(
        {"stride": 5},
        {"stride": 4, "mode": "heads"},
        {"stride": 5, "columns": 2, "pattern": "fixed", "groups": 2, "backend": "blocked"},
        {"stride": 4, "columns": 2, "pattern": "fixed", "mode": "interleave", "bias": ("value",)},
        {"stride": 6, "mode": "interleave", "backend": "blocked"},
        {"mode": "heads", "sets": ("second", "both"), "key_dim": 3, "backend": "blocked"},
        {"pattern": "fixed", "key_dim": 6},
        {"stride": 4, "columns": 1, "pattern": "fixed", "mode": "heads", "sets": ("second",)},
    ),
    limits=are_attention("sparse-transformer", LIMITS),
)


@MIXERS.register("sparse-transformer")
class SparseTransformer(PlanAttention):
    """Factorised attention over (B, L, width), with its projections."""

    name = "sparse-transformer"
    trials = TRIALS
    drawn_for = "lm"
    Options = SparseTransformerOptions
    options: SparseTransformerOptions

    def key_channels(self, size: int) -> int:
        return self.options.key_dim or size

    def prepare(self, longest: int | None) -> None:
        o = self.options
        near_root = 64 if longest is None else math.isqrt(longest - 1) + 1
        self.stride = near_root if o.stride is None else o.stride
        self.columns = max(1, min(8, self.stride // 4)) if o.columns is None else o.columns
        if o.groups * self.columns > self.stride:
            raise GeneError(
                f"sparse-transformer: `groups={o.groups}` of `columns={self.columns}` must lie in "
                f"one `stride={self.stride}`"
            )
        if not o.sets:
            raise GeneError("sparse-transformer: `sets=()` says of no head or layer what it sees")
        self.layer = self.layers = 0
        self._plan = self._planned()

    @classmethod
    def for_pictures(
        cls, options: SparseTransformerOptions, picture: Picture
    ) -> SparseTransformerOptions:
        if options.stride is not None or picture.tile is not None:
            return options
        return dataclasses.replace(options, stride=picture.grid[1])

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
        """Patterns whose union one head sees."""
        first, second = self.sets_of(self.options.pattern, head % self.options.groups)
        step = head if self.options.mode == "heads" else self.layer
        sets = ("both",) if self.options.mode == "merged" else self.options.sets
        seen = sets[step % len(sets)]
        return {"first": first, "second": second, "both": (*first, *second)}[seen]

    @property
    def row(self) -> int:
        return self.stride

    def sets(self) -> Titled:
        """Unions of figure 3 of the paper: all earlier tokens, the strided and the fixed sets."""
        before, after = self.sets_of("strided"), self.sets_of("fixed")
        return [
            ("all", (Near(causal=self.causal),)),
            (f"strided, l = {self.stride}", (*before[0], *before[1])),
            (f"fixed, l = {self.stride}, c = {self.columns}", (*after[0], *after[1])),
        ]

    def sets_of(
        self, pattern: str, group: int = 0
    ) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        """A1 and A2 of either pair, for the heads of one group."""
        causal = self.causal
        if pattern == "strided":
            back = self.stride - 1
            return (Near(before=back, after=back, causal=causal),), (
                Near(dilation=self.stride, causal=causal),
            )
        last = self.stride - group * self.columns
        summary = Columns(period=self.stride, first=last - self.columns, last=last, causal=causal)
        return (Blocks(size=self.stride, causal=causal),), (summary,)
