"""Sparse Sinkhorn attention: each block of tokens sees itself and one block sorted in from afar.

    X'_i = sum_{t in block i} X_t,   R = sort net(X'),   P = Sinkhorn((R + e) / tau)     (N, N)
    psi(K)_i = sum_j P_ij K_j,   psi(V)_i = sum_j P_ij V_j        of N blocks of s tokens
    y_t = softmax([q psi(K)_i, q K_i] / sqrt(D)) [psi(V)_i, V_i],   Y = concat_h(y) W_o^T

for t in block i. X' stands for a block, R are logits, P is the soft permutation that they become by
Sinkhorn balancing, one for each head, and psi sorts whole blocks: token r of a sorted block mixes
the tokens r of all blocks. tau is a temperature, e Gumbel noise, in training only. ``sort_net``:
linear (X' W) or mlp (relu(relu(X' W + b) W' + b')), with a column for each of N blocks of the
longest text. ``combine``: one softmax over both blocks (concat), or the scores of both added token
by token and psi(V) read (sum-scores). ``mixture`` adds full attention by the same heads.
``sortcut`` = n: every token sees the first n sorted blocks and nothing else (both ways only).

Causal: X'_i sums what was read up to the first token of block i, only earlier blocks are sorted in,
and columns are summed over the rows so far (`engines.content.balance`); block 0 gets a learned
null key and value. There balancing leaves one solution: row 1 takes block 0 whole, so what is left
for row 2 is block 1, and so on. The more ``iterations``, the nearer every row is to the block just
before, whatever its logits; the default is 1. A token of a sorted block that is partly mixed of
padding has the weight of its real part.

Cost: O(L s D) time a head for scores and O(L^2 D / s) for psi, a cheap product; O(L s + (L/s)^2)
memory. State: keys and values of all tokens, sums over columns. Row i of P is made when block i
begins, so a token costs O(s D), and O(L D / s) on average for psi.

Source: Tay et al. 2020, arXiv 2002.11296. The paper prints sum-scores; concat follows the
sinkhorn-transformer package. Deviation: any length (the last block may be short).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Bounds, Count, Dropout, Positive
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.subset import gather_rows
from everyformer.core.trace import record, tracing
from everyformer.engines.content.balance import NOTHING, balanced, balanced_reference, gumbel
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Visibility, common, surely
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import HeadMixer, Rows
from everyformer.genes.mixers.sinkhorn.sorting import (
    KV,
    Combine,
    Null,
    SinkhornState,
    Sorter,
    SortNet,
    attend_block,
    attend_token,
    begin_block,
    first_sorted,
    in_order,
    own_and_sorted,
    pooled_reference,
    sinkhorn_attention_reference,
    sorted_blocks,
)
from everyformer.genes.mixers.sinkhorn.trials import TRIALS
from sequence_laws.memory import check_memory


@dataclass(frozen=True)
class SinkhornOptions(Options):
    """Options of `Sinkhorn`."""

    block_size: Count = 64
    """s, tokens of a block"""
    sort_net: SortNet = "linear"
    """net that makes the logits of P: see the text for which are the paper's"""
    iterations: Annotated[int, Bounds(1, 1000)] | None = None
    """rounds of the balancing of rows and columns (default: 8, causal 1)"""
    tau: Positive = 0.75
    """temperature of P"""
    combine: Combine = "concat"
    """how the sorted and the own block are read"""
    mixture: bool = False
    """add full attention by the same queries, keys and values (the paper's mixture model)"""
    sortcut: Count | None = None
    """the paper's SortCut: read the first so many sorted blocks, and no own one (both ways only)"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    gone: ClassVar[dict[str, Any]] = {
        "pool": "sum", "gumbel": True, "hard": False, "shared_sort": False
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sortcut is not None and self.combine != "concat":
            raise ConfigError(
                f"`sortcut={self.sortcut}` reads no own block: leave `combine='{self.combine}'` out"
            )


@MIXERS.register("sinkhorn")
class Sinkhorn(HeadMixer):
    """Sparse Sinkhorn attention over (B, L, width)."""

    name = "sinkhorn"
    trials = TRIALS
    states = (SinkhornState,)
    Options = SinkhornOptions
    options: SinkhornOptions

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o, causal = self.options, self.causal
        if causal and o.sortcut is not None:
            raise GeneError(
                f"`sortcut={o.sortcut}` shows all tokens the same blocks, later ones too: use it "
                "with `causal=False`"
            )
        if max_length is None:
            raise GeneError(
                f"`sort_net='{o.sort_net}'` has a column for each block of the longest text, so it "
                "needs max_length: give it"
            )
        self.max_length = max_length
        self.iterations = o.iterations or (1 if causal else 8)
        self.most = -(-max_length // o.block_size)
        # keys, values and those that are sorted in
        check_memory(
            4.0 * o.block_size * self.width * torch.get_default_dtype().itemsize,
            f"sinkhorn: a block of `block_size={o.block_size:,}` tokens",
            "choose a smaller block_size",
        )
        self.add_projections(o.bias)
        self.sorter: nn.Module = Sorter(o.sort_net, self.heads, self.width, self.most)
        self.null: nn.Parameter | None = None
        if causal:
            self.null = nn.Parameter(torch.randn(2, self.heads, 1, self.head_dim))

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        if state is not None:
            assert isinstance(state, SinkhornState)
            return self._continue(rows, state)
        self.check_length(rows.x.shape[1])
        return MixerOutput(self._parallel(rows.x, rows.padding_mask), None, {})

    def _parallel(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Outputs (B, L, width) of rows whose real tokens come first."""
        (batch, length), size = x.shape[:2], self.options.block_size
        count = (length + size - 1) // size
        padding = count * size - length
        real = x.new_ones(1, length, dtype=torch.bool) if padding_mask is None else padding_mask
        real = F.pad(real, (0, padding)).unflatten(1, (count, size))
        x = F.pad(x, (0, 0, 0, padding))
        q, k, v = self.project(x)
        visible = real.flatten(1)[:, None, :, None]
        k, v = k.masked_fill(~visible, 0), v.masked_fill(~visible, 0)
        blocks = tuple(t.unflatten(2, (count, size)) for t in (q, k, v))
        logits = self._logits(x.unflatten(1, (count, size)), real)
        there = real[..., 0].expand(batch, -1)
        p = balanced(self._noisy(logits), self.iterations, causal=self.causal, real=there)
        y = self._mix(blocks, p, real, self._null())
        if tracing():
            record(self, "sort", lambda: p)
            one = torch.eye(count * size, dtype=v.dtype, device=v.device)
            one = one.expand(*v.shape[:2], -1, -1).unflatten(2, (count, size))
            one = one * real[:, None, :, :, None].to(one.dtype)
            record(self, "weights", lambda: self._weights((*blocks[:2], one), p, real, length))
        # cut last: whether a cut tensor is contiguous would tie a compiled graph to some lengths
        return self.merge(y)[:, :length]

    def _weights(self, blocks: tuple[Tensor, ...], p: Tensor, real: Tensor, length: int) -> Tensor:
        """Weights (B, H, L, L) of tokens in outputs: mixing is linear in the values."""
        null = self._null()
        if null is not None:
            null = null[0], torch.zeros_like(blocks[2][0, :, 0, :1])
        return self._mix(blocks, p, real, null)[..., :length, :length]

    def _mix(
        self, blocks: tuple[Tensor, ...], p: Tensor, real: Tensor, null: Null | None
    ) -> Tensor:
        """Outputs of heads (B, H, N s, D_v) of blocks (B, H, N, s, ...)."""
        o, causal, dropout = self.options, self.causal, self.dropout
        q, k, v = blocks
        far = sorted_blocks(p, k, v, None if causal else real, null)
        if o.sortcut is not None:
            y = first_sorted(q.flatten(2, 3), far, o.sortcut, dropout)
        else:
            y = own_and_sorted(q, k, v, far, real, o.combine, causal, dropout)
        if o.mixture:
            seen = None if causal else real.flatten(1)[:, None, None]
            q, k, v = (t.flatten(2, 3) for t in blocks)
            y = y + softmax_attention(q, k, v, Visibility(causal, seen), dropout=dropout)
        return y

    def _logits(self, x: Tensor, real: Tensor) -> Tensor:
        """R (B, H, N, N) of inputs (B, N, s, width)."""
        read = widened(x).masked_fill(~real[..., None], 0)
        sums = read.sum(2)
        if self.causal:
            sums = F.pad(sums.cumsum(1)[:, :-1], (0, 0, 1, 0)) + read[:, :, 0]
        logits: Tensor = self.sorter(sums, x.shape[1])
        return logits

    def _null(self) -> Null | None:
        """The key and value (H, 1, D) that block 0 reads in place of an earlier block."""
        return None if self.null is None else (self.null[0], self.null[1])

    def _noisy(self, logits: Tensor) -> Tensor:
        if self.training:
            logits = logits + gumbel(logits)
        return logits / self.options.tau

    def text_reference(self, text: Rows) -> Tensor:
        o, size = self.options, self.options.block_size
        q, k, v = (t[0] for t in self.project(text.x))
        pooled = pooled_reference(text.x[0], size, self.causal)[None]
        logits = self.sorter(pooled, pooled.shape[1])[0]
        p = balanced_reference(logits / o.tau, self.iterations, self.causal)
        heads = sinkhorn_attention_reference(
            q, k, v, p, size, o.combine, causal=self.causal, null=self.null, sortcut=o.sortcut,
            mixture=o.mixture,
        )  # fmt: skip
        return self.merge(heads[None])

    def empty_state(self, batch: int, **like: Any) -> SinkhornState:
        wide = {**like, "dtype": torch.promote_types(like["dtype"], torch.float32)}
        o, heads = self.options, (batch, self.heads)
        cache = KeyValueState.empty(heads, self.head_dim, self.head_dim, **like)
        block = torch.zeros(*heads, o.block_size, self.head_dim, **like)
        columns = torch.full((*heads, self.iterations, self.most), NOTHING, **wide)
        pooled = torch.zeros(batch, self.width, **wide)
        return SinkhornState(cache.num_tokens, cache, pooled, block, block, columns)

    def _continue(self, rows: Rows, state: SinkhornState) -> MixerOutput:
        """Outputs of tokens after those of the state, at most a block at a time."""
        place = common(state.num_tokens)
        whole = rows.padding_mask is None and state.cache.padding_mask is None
        if place is not None and whole and rows.x.shape[1] == 1:
            y, state = self._one(rows.x, state, place)
            return MixerOutput(y, state, {})
        outputs = []
        for part in rows.pieces(self.options.block_size):
            y, state = self._step(part, state)
            outputs.append(y)
        return MixerOutput(torch.cat(outputs, 1), state, {})

    def _one(self, x: Tensor, state: SinkhornState, place: int) -> tuple[Tensor, SinkhornState]:
        """One token of rows that have all read ``place`` tokens: none is hidden, and it is known
        whether a block begins."""
        o, first = self.options, place - place % self.options.block_size
        self.check_length(place + 1)
        q, k, v = self.project(x)
        cache = state.cache.append(k, v, None, None)
        cached = cache.keys, cache.values
        pooled = state.pooled + widened(x[:, 0]).to(state.pooled.dtype)
        far, columns = (state.sorted_keys, state.sorted_values), state.columns
        if place == first:
            begins = torch.ones_like(state.num_tokens, dtype=torch.bool)
            far, columns = self._begin(pooled[:, None], state.num_tokens, begins, cached, state)
        y = attend_token(q, cached, far, first, o.combine, o.mixture, self.dropout)
        return self.merge(y), SinkhornState(cache.num_tokens, cache, pooled, *far, columns)

    def _step(self, rows: Rows, state: SinkhornState) -> tuple[Tensor, SinkhornState]:
        """At most s tokens, so that at most one block begins in a row."""
        x = rows.x
        length, size = x.shape[1], self.options.block_size
        q, k, v = self.project(x)
        tokens = torch.arange(length, device=x.device)
        positions = state.num_tokens[:, None] + tokens
        cache = state.cache.append(k, v, positions, rows.padding_mask)
        cached = in_order(cache)
        count = rows.lengths.expand_as(state.num_tokens)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check_length(int((state.num_tokens + count).max()))
        start = -state.num_tokens % size
        begins = start < count
        sums = state.pooled[:, None] + widened(x).cumsum(1).to(state.pooled.dtype)
        old = new = state.sorted_keys, state.sorted_values
        columns = state.columns
        if not surely(~begins):
            pooled = gather_rows(sums, start.clamp(max=length - 1)[:, None])
            new, columns = self._begin(pooled, state.num_tokens + start, begins, cached, state)
        o, in_next = self.options, tokens >= start[:, None]
        y = attend_block(
            q, cached, old, new, positions, in_next, o.combine, o.mixture, self.dropout
        )
        last = gather_rows(torch.cat((state.pooled[:, None], sums), 1), count[:, None])[:, 0]
        after = SinkhornState(cache.num_tokens, cache, last, new[0], new[1], columns)
        return self.merge(y), after

    def _begin(
        self, sums: Tensor, first: Tensor, begins: Tensor, cached: KV, state: SinkhornState
    ) -> tuple[KV, Tensor]:
        """`begin_block` of rows whose block ``begins`` (B,) at the token ``first`` (B,), with the
        ``sums`` (B, 1, width) of what is read up to that token."""
        null, size = self._null(), self.options.block_size
        assert null is not None
        logits = self.sorter(sums, min(cached[0].shape[2] // size, self.most))
        return begin_block(self._noisy(logits)[:, :, 0], first // size, begins, cached, state, null)
