"""BigBird: blocks read their neighbours, some random blocks, and blocks that all read.

    block a sees   {b : |a - b| <= (w - 1)/2}  and  G  and  R_h[a],    a in G sees all

over blocks of ``block_size`` tokens, whole blocks each: w = ``window_blocks``, r = |R_h[a]| =
``random_blocks``, in one softmax with one set of projections. With ``form="itc"`` G are
``global_blocks`` of the text itself: the first and the last one that hold real tokens. Padding does
not move them (in the released code the last block of the padded text is global). With ``etc`` the
first ``extra_tokens`` tokens are global and in no block; a model learns them and puts them in front
(`Mixer.prefix`), so that they carry what they read from layer to layer.

R_h[a] are drawn once, for every head and layer by ``seed``, without replacement from what is
neither near nor global, and kept in the buffer ``order``: training, evaluation and a saved model
read the same blocks, at any length. ``random="release"`` draws the tables of the released code for
texts of max_length. ``zeros`` is what transformers computes in evaluation: all r random blocks are
block 0, which so counts 1 + r times in the softmax of all blocks but the global ones.

Causal (this library's extension; the paper's decoders have full attention): j <= i, the random
blocks from those before the window, rows with fewer take fewer, and G is the first block.

Cost: O(L (w + r + |G|) block_size). State of the causal form: the window, G, and the blocks that
a later one has drawn.

Source: Zaheer et al. 2020, arXiv 2007.14062, section 2 and appendix D.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.bounds import Bounds, Count, Index, Odd, When, Whole
from everyformer.core.devices import readable
from everyformer.core.dispatch import take
from everyformer.core.errors import GeneError
from everyformer.core.leaving import leaves_torch
from everyformer.core.mixer import Mixer
from everyformer.core.shared import shared
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse.patterns import (
    Blocks,
    BlockTable,
    GlobalKeys,
    GlobalQueries,
    Near,
    Pattern,
)
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.engines.sparse.random_blocks import (
    Rules,
    fixed_edges,
    random_edges,
    released_order,
    shortlist,
    uniform_order,
)
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.attention.reference import attention_reference
from everyformer.genes.mixers.base import Rows, largest
from everyformer.genes.mixers.bigbird.trials import TRIALS
from everyformer.genes.mixers.patterned import Heads, PatternAttention, PatternOptions, Weigh

MOST_GLOBAL = 1 << 20
"""global tokens, which plans list one by one"""
SEEDS = 2**31
"""how many there are: a layer's number is added, and NumPy takes 32 bits"""


@dataclass(frozen=True)
class BigBirdOptions(PatternOptions):
    block_size: Count = 64
    """tokens of a block"""
    window_blocks: Odd = 3
    """w, odd: the own block and as many to each side (causal: before it)"""
    random_blocks: Whole = 3
    """r, random blocks of each block and head; fewer where there are not as many"""
    global_blocks: tuple[Index, ...] | None = None
    """blocks of the text that see all and are seen by all; negative: from the end of the real text
    (default: the first and the last, causal the first, with form etc none)"""
    form: Literal["itc", "etc"] = "itc"
    """whether global tokens are of the text, or learned and in front of it"""
    extra_tokens: Annotated[Whole, When("form", "etc")] = 64
    """g, global tokens in front (the paper's form etc has 256)"""
    random: Literal["uniform", "release", "zeros"] = "uniform"
    """evenly; the released tables for max_length; r times block 0 (transformers in evaluation)"""
    seed: Annotated[int, Bounds(0, SEEDS - 1)] = 0
    """of the random blocks; layers and heads draw their own"""
    dense_blocks: Whole = 0
    """texts of at most so many blocks see everything (transformers: 5 + 2 r)"""


SMALL = {"block_size": 4, "random_blocks": 2}
"""blocks of pictures"""


@MIXERS.register("bigbird")
class BigBird(PatternAttention):
    """Windows of blocks, random and global blocks over (B, L, width), with the projections."""

    name = "bigbird"
    trials = TRIALS
    drawn_for = "mlm"
    Options = BigBirdOptions
    options: BigBirdOptions
    examples = (
        ("at random", {**SMALL, "window_blocks": 1, "global_blocks": ()}),
        ("near", {**SMALL, "random_blocks": 0, "global_blocks": ()}),
        ("for all", {**SMALL, "window_blocks": 1, "random_blocks": 0}),
        ("all three", SMALL),
    )

    def prepare(self, longest: int | None) -> None:
        o, causal = self.options, self.causal
        self.layer = self.layers = 0
        self.prefix = o.extra_tokens if o.form == "etc" else 0
        always = o.global_blocks
        if always is None:
            always = () if o.form == "etc" else (0,) if causal else (0, -1)
        self.rules = Rules(o.window_blocks // 2, tuple(dict.fromkeys(always)), causal)
        drawn = o.random_blocks > 0 and o.random != "zeros"
        # of a block that is longer than any text, no more than that is in plans
        self._size = min(o.block_size, longest) if drawn and longest else o.block_size
        self.max_length = longest if drawn else None
        self._check(drawn, longest)
        self.order: Tensor | None
        self.register_buffer("order", self._drawn() if drawn else None)
        self._known: dict[int, SparsePlan] = {}
        self._known_of = (0, 0)
        self._newest = self.plan(1)

    def _check(self, drawn: bool, longest: int | None) -> None:
        """Refuse options that cannot be together, or not with the longest text."""
        o, rules, position = self.options, self.rules, self.position
        if drawn and longest is None:
            raise GeneError(
                "bigbird draws its random blocks once, for the longest text, so it needs "
                "max_length: give it, or `random_blocks=0`"
            )
        blocks = math.inf if longest is None else -(-longest // o.block_size)
        if outside := [block for block in rules.always if not -blocks <= block < blocks]:
            raise GeneError(
                f"`global_blocks={rules.always}` names block {outside[0]}, but "
                f"`max_length={longest}` has {blocks} blocks of `block_size={o.block_size}`"
            )
        if (tokens := len(rules.always) * self._size) > MOST_GLOBAL:
            raise GeneError(
                f"bigbird lists its global tokens, {tokens:,} in `global_blocks={rules.always}` "
                f"of `block_size={o.block_size}`, and {MOST_GLOBAL:,} at most: choose a smaller "
                "block_size, or `global_blocks=()`"
            )
        if o.random == "release" and longest is not None and longest % o.block_size:
            raise GeneError(
                f"`random='release'` has tables for whole blocks: `max_length={longest}` is no "
                f"multiple of `block_size={o.block_size}`"
            )
        wrong = {
            "form='etc'": o.form == "etc",
            "random='zeros'": o.random == "zeros",
            f"dense_blocks={o.dense_blocks}": o.dense_blocks > 0,
            f"global_blocks={rules.always}": min(rules.always, default=0) < 0,
        }
        if self.causal and any(wrong.values()):
            named = next(name for name, chosen in wrong.items() if chosen)
            raise GeneError(
                f"{named} depends on the end of the text, or lets all tokens read later ones: use "
                "it with `causal=False`"
            )
        if o.random == "zeros" and position is not None:
            raise GeneError(
                "`random='zeros'` is for checkpoints of transformers, which have no position "
                f"inside: use `random='uniform'` with position '{position.name}'"
            )

    def join(self, first: Mixer) -> None:
        """Counts the layers of a stack, each of which draws its own random blocks."""
        assert isinstance(first, BigBird)
        first.layers += 1
        self.layer = first.layers
        if self.order is not None:
            self.order = self._drawn()
        self._newest = self.plan(1)

    def _load_from_state_dict(self, *loaded: Any) -> None:
        super()._load_from_state_dict(*loaded)
        self._newest = self.plan(1)

    def _drawn(self) -> Tensor:
        o, longest = self.options, self.max_length
        assert longest is not None
        if o.random == "release":
            return released_order(
                self.heads, longest, o.block_size, o.random_blocks, o.seed + self.layer
            )
        blocks = -(-longest // o.block_size)
        order = uniform_order(self.heads, blocks, o.seed + 1_000_003 * self.layer)
        return shortlist(order, o.random_blocks, self.rules)

    def blocks(self, length: int) -> int:
        """Number of blocks of a text of ``length`` tokens, those in front not counted."""
        return max(1, -(-(length - self.prefix) // self.options.block_size))

    def plan(self, length: int) -> SparsePlan:
        """Visible pairs of each head in ``length`` tokens; causal: of any longer text too."""
        if torch.compiler.is_compiling():
            return self._newest
        count = self.blocks(length)
        if self.causal and self.max_length is not None:
            count = self.blocks(self.max_length)
        elif self.causal:
            # windows and global blocks go on for ever
            count = 1 + max(self.rules.always, default=0)
        order = self.order
        version = 0 if order is None or order.is_inference() else order._version
        if self._known_of != (id(order), version):
            self._known, self._known_of = {}, (id(order), version)
        if count not in self._known:
            # models are also built where nothing is computed, on no device
            with torch.device("cpu"):
                self._known[count] = self._planned(count)
        self._newest = self._known[count]
        return self._newest

    def _planned(self, count: int) -> SparsePlan:
        """The plan of a text of ``count`` blocks."""
        o, causal, size = self.options, self.causal, self._size
        blocks = torch.tensor([count])
        near, always = fixed_edges(self.rules, count, blocks)
        mask = near | always[:, None] | always[:, :, None]
        drawn = torch.zeros(1, 1, count, count, dtype=torch.bool)
        if self.order is not None:
            # on a device without numbers, those of its seed
            order = self._drawn() if self.order.is_meta else self.order.cpu()
            drawn = random_edges(order, o.random_blocks, self.rules, count, blocks)
        whole = not causal and self._counts_once(count) and bool((mask[:, None] | drawn).all())
        if whole or count <= o.dense_blocks:
            return SparsePlan.of(Near(causal=causal))
        side = self.rules.half * size
        union: list[Pattern] = [
            Blocks(size=size, before=side, after=side, causal=causal, skip=self.prefix)
        ]
        chosen = always[0].nonzero().squeeze(1).tolist()
        starts = [self.prefix + block * size for block in chosen]
        tokens = (*range(self.prefix), *(at + n for at in starts for n in range(size)))
        if tokens:
            union.append(GlobalKeys(tokens=tokens, causal=causal))
        if bool(drawn.any()):
            rows = tuple(
                tuple(tuple(row.nonzero().squeeze(1).tolist()) for row in head) for head in drawn[0]
            )
            union.append(BlockTable(size=size, table=rows, causal=causal, skip=self.prefix))
        if tokens:
            union.append(GlobalQueries(tokens=tokens, causal=causal))
        return SparsePlan.of(*union)

    def _counts_once(self, count: int) -> bool:
        """True where no key of a text of ``count`` blocks counts more than once."""
        o = self.options
        return o.random != "zeros" or not o.random_blocks or count <= o.dense_blocks

    def heads_of(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        longest, x = rows.x.shape[1], rows.x
        known = x.device.type == "cpu" and not torch.compiler.is_compiling()
        if known and rows.padding_mask is not None:
            longest = int(rows.lengths.max())
        if known and state is not None:
            longest += shared(largest, state.num_tokens)
        self.check_length(longest - self.prefix)
        if self.causal:
            return self._by_plan(rows, state)
        return self._by_counts(self._project(rows, None)[0], rows.padding_mask), None

    def _by_counts(self, heads: Heads, padding_mask: Tensor | None) -> Tensor:
        """Heads' outputs of texts of any number of blocks, each of which has a plan of its own."""
        length, device = heads[0].shape[2], heads[0].device
        if tracing():
            record(self, "weights", lambda: self._pairs(heads, padding_mask, self._weights))
        known = padding_mask is None or readable(padding_mask)
        if torch.compiler.is_compiling() or leaves_torch() or not known:
            take(self.name, "dense", "a graph serves texts of any number of blocks", True)
            return self._pairs(heads, padding_mask, self._outputs)
        if padding_mask is None:
            return self._sparse(heads, None, length)
        lengths = padding_mask.sum(1)
        counts = [self.blocks(real) for real in lengths.tolist()]
        if len(set(counts)) == 1:
            return self._sparse(heads, lengths, int(lengths.max()))
        outputs, rows = [], []
        for count in sorted(set(counts)):
            own = [row for row, own_count in enumerate(counts) if own_count == count]
            at = torch.tensor(own, device=device)
            upto = min(length, self.prefix + count * self.options.block_size)
            q, k, v = (t.index_select(0, at)[:, :, :upto] for t in heads)
            out = self._sparse((q, k, v), lengths.index_select(0, at), upto)
            outputs.append(F.pad(out, (0, 0, 0, length - upto)))
            rows += own
        order = torch.tensor(rows, device=device).argsort()
        return torch.cat(outputs).index_select(0, order)

    def _sparse(self, heads: Heads, lengths: Tensor | None, longest: int) -> Tensor:
        """Heads' outputs of texts with as many blocks as one of ``longest`` tokens."""
        count, plan = self.blocks(longest), self.plan(longest)
        if self._counts_once(count):
            return self.attend(*heads, plan, lengths)
        q, k, v = heads
        q, k = self._repeated(q, k, torch.tensor([count], device=q.device))
        v = F.pad(v, (0, q.shape[-1] - self.head_dim))
        scores = Scores(1 / math.sqrt(self.head_dim), dropout=self.scores.dropout)
        y = self.attend(q, k, v, plan, lengths, scores)
        return y[..., : self.head_dim]

    def _repeated(self, q: Tensor, k: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with a channel by which block 0 counts 1 + r times."""
        at = torch.arange(q.shape[2], device=q.device)
        block = self._block(at)
        marked = ~self._always(block, blocks) & (blocks > self.options.dense_blocks)[:, None]
        marked = marked & (at >= self.prefix)
        more = math.log(1 + self.options.random_blocks) * math.sqrt(self.head_dim)
        counts = more * ((block == 0) & (at >= self.prefix)).to(k.dtype)
        width = -(-(self.head_dim + 1) // 8) * 8 - self.head_dim
        marked, counts = (F.pad(t[..., None].to(q.dtype), (0, width - 1)) for t in (marked, counts))
        batch, many = q.shape[:2]
        q = torch.cat((q, marked[:, None].expand(batch, many, -1, -1)), -1)
        k = torch.cat((k, counts.expand(batch, many, -1, -1)), -1)
        return q, k

    def _pairs(self, heads: Heads, padding_mask: Tensor | None, weigh: Weigh) -> Tensor:
        """All pairs, for graphs and pictures: texts of any number of blocks at once."""
        length, device, o = heads[0].shape[2], heads[0].device, self.options
        at = torch.arange(length, device=device)
        block, prefix = self._block(at), at < self.prefix
        lengths = at.new_full((1,), length) if padding_mask is None else padding_mask.sum(1)
        count = ((lengths - self.prefix + o.block_size - 1) // o.block_size).clamp(min=1)
        always = self._always(block, count) | prefix
        near = (block[:, None] - block).abs() <= self.rules.half
        mask = (near | always[:, None] | always[:, :, None])[:, None]
        if self.order is not None:
            # of as many blocks as can be, since graphs serve any length
            most = self.order.shape[1]
            drawn = random_edges(self.order, o.random_blocks, self.rules, most, count)
            mask = mask | drawn.index_select(2, block).index_select(3, block)
        mask = mask | (count <= o.dense_blocks)[:, None, None, None]
        if padding_mask is not None:
            mask = mask & padding_mask[:, None, None]
        if o.random != "zeros" or not o.random_blocks:
            return weigh(*heads, mask, at[None], at[None])
        q, k = self._repeated(heads[0], heads[1], count)
        return weigh(q, k, heads[2], mask, at[None], at[None])

    def reference_heads(self, text: Rows) -> Tensor:
        length, count = text.x.shape[1], self.blocks(text.x.shape[1])
        if self._counts_once(count):
            return self._reference(text)
        block, always = self._block(torch.arange(length)), self.rules.always
        chosen = torch.tensor([b % count for b in always if -count <= b < count])
        twice = (block == 0) & ~torch.isin(block, chosen)[:, None]
        prefix = torch.arange(length) < self.prefix
        twice = twice & ~prefix & ~prefix[:, None]
        more = math.log(1 + self.options.random_blocks) * twice.to(text.x.dtype)
        mask = self.plan(length).mask(length, self.heads)
        mask, bias = (t[None].to(text.x.device) for t in (mask, more[None]))
        return attention_reference(*self.project(text.x), mask=mask, bias=bias)

    def _always(self, block: Tensor, counts: Tensor) -> Tensor:
        """Flags (B, L) of the blocks (L,) that are global in texts of ``counts`` (B,) blocks."""
        flags = torch.zeros_like(block + counts[:, None], dtype=torch.bool)
        for named in self.rules.always:
            flags = flags | (block == (named if named >= 0 else counts[:, None] + named))
        return flags

    def _block(self, at: Tensor) -> Tensor:
        """The block of every position; of those in front the first."""
        block: Tensor = (at - self.prefix).clamp(min=0) // self.options.block_size
        return block
