"""Blockwise self-attention (BlockBERT): a head reads one block of keys for each block of queries.

    O_a = softmax(Q_a K_b^T / sqrt(D)) V_b,   b = pi_h(a),   blocks of ceil(N / n) tokens

n = ``blocks``, N = ``max_length`` (a block is as long for a short text, whose later blocks hold
nothing). pi_h is a permutation of the blocks for each head; the paper takes the cyclic shifts
pi(a) = (a + s) mod n and gives most heads s = 0, the query's own block. ``groups`` says how many
heads have each shift s = 0, 1, ...

Causal (our extension, the paper has none): head s reads block a - s, whole; its own, up to the
query, where s = 0 or there is no such block. Any length.

Cost: O(L^2 d / n) time, scores of H L^2 / n. State: the keys and values of s + 1 blocks.

Source: Qiu et al. 2019, arXiv 1911.02972, section 3. The printed formula has a dangling product
and 1-based blocks; hidden pairs get no weight (scores of -inf), they are not multiplied by 0.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from everyformer.core.bounds import Count, Whole
from everyformer.core.errors import GeneError
from everyformer.core.trials import LONGEST, Trials, are_attention
from everyformer.engines.sparse.patterns import BlockTable, PastBlocks, Pattern
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.patterned import PatternOptions, PlanAttention


@dataclass(frozen=True)
class BlockwiseOptions(PatternOptions):
    blocks: Count = 2
    """n, blocks of the longest text"""
    block_size: Count | None = None
    """tokens of a block (default: max_length / blocks, rounded up)"""
    groups: tuple[Whole, ...] | None = None
    """how many heads shift by 0, 1, ... blocks (default: a sixth, at least one, by each but 0)"""
    gone: ClassVar[dict[str, Any]] = {"permutations": None, "wrap": "self"}


@MIXERS.register("blockwise")
class Blockwise(PlanAttention):
    """Blockwise attention over (B, L, width), with its projections."""

    name = "blockwise"
    trials = Trials(
        variants=(
            {},
            {"blocks": 3, "groups": (1, 1, 1), "backend": "blocked"},
            {"blocks": 4, "groups": (1, 0, 2), "bias": ("query", "output")},
            {"blocks": 5, "block_size": 8, "groups": (0, 2, 1)},
            {"blocks": 1},
        ),
        limits=are_attention("blockwise", {"one block": {"blocks": 1, "max_length": LONGEST}}),
    )
    drawn_for = "mlm"
    Options = BlockwiseOptions
    options: BlockwiseOptions
    examples = (
        ("4 blocks, shift 0", {"blocks": 4, "groups": (1,)}),
        ("shift 1", {"blocks": 4, "groups": (0, 1)}),
    )

    def prepare(self, longest: int | None) -> None:
        o, causal = self.options, self.causal
        if longest is None and (o.block_size is None or not causal):
            raise GeneError(
                "blockwise cuts the longest text into blocks: give `max_length=...`, or, with "
                "`causal=True`, `block_size=...`"
            )
        self.block = o.block_size or -(-(longest or 1) // o.blocks)
        unions = tuple((pattern,) for pattern in self._patterns())
        self._plan = SparsePlan(unions[:1] if len(set(unions)) == 1 else unions)
        if not causal:
            self.max_length = self.block * o.blocks
            if longest is not None and self.max_length < longest:
                raise GeneError(
                    f"blockwise: `blocks={o.blocks}` of `block_size={self.block}` hold "
                    f"{self.max_length} tokens, but `max_length={longest}`: give "
                    f"`blocks={-(-longest // self.block)}`, or leave block_size out"
                )

    def plan(self, length: int) -> SparsePlan:
        if not self.causal:
            self.check_length(length)
        return self._plan

    def _patterns(self) -> list[Pattern]:
        """One a head."""
        shifts, n = self._shifts(), self.options.blocks
        if self.causal:
            return [PastBlocks(size=self.block, shift=s) for s in shifts]
        tables = [tuple(((a + s) % n,) for a in range(n)) for s in shifts]
        return [BlockTable(size=self.block, table=(table,), causal=False) for table in tables]

    def _shifts(self) -> list[int]:
        """By how many blocks each head looks away."""
        o, heads = self.options, self.heads
        each = max(1, heads // 6)
        groups = o.groups
        if groups is None:
            far = [each] * min(o.blocks - 1, (heads - 1) // each)
            groups = (heads - sum(far), *far)
        if sum(groups) != heads or len(groups) > o.blocks:
            raise GeneError(
                f"blockwise: `groups={groups}` must share out `heads={heads}` among shifts by 0 to "
                f"{o.blocks - 1} blocks"
            )
        return [shift for shift, count in enumerate(groups) for _ in range(count)]
