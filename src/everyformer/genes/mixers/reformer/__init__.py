"""Reformer's attention: tokens are sorted by a hash of their queries, and see those sorted near.

    q_i = k_i = W_qk x_i (one projection),  v_i = W_v x_i,   s_ij = q_i . k_j / |k_j|
    b_i^r = h_r(q_i), r = 1 .. n_r        (`engines.content.hashing`), R_r drawn at every pass
    round r: tokens sorted by (b^r, i) and cut into chunks of C; a chunk sees itself, the chunk
    before it and, both ways, the one after
    o_i = sum_j N_ij exp(s_ij) v_j / sum_j N_ij exp(s_ij)        over j < i when causal, else j != i

N_ij counts how often the rounds show j to i; with ``once`` it is 1 instead, the union of sets that
the paper means (published code leaves this out). A token sees itself only if it sees nothing else:
o_i = v_i. Symbols: n_r = ``rounds``, C = ``chunk``. Scores have no factor, as in trax and Hugging
Face, where keys are divided twice.

Cost: O(n_r L C D) time and O(n_r L D) memory, besides O(n_r L log L) for the sort. State: q, v and
buckets of all tokens seen.

Not strictly causal: no content of later tokens is seen, but they move the borders of the chunks,
and so which earlier tokens are. So losses of whole texts are not quite those of a model that writes
(comparisons mark them), and a state cannot repeat one pass over a longer text. It has two
forms (``decode``): "exact" sorts all tokens seen and gives what a pass over them gives for the new
ones; "bucket" lets a new token see the tokens of its buckets and the latest ones up to n_r C
times the chunks of a window, as trax does, which is an approximation.

Published models have local layers between: mixer=by_layer("attention", "reformer", ...) with
window=by_layer(128, None, ...), or --by-layer mixer=attention,reformer window=128,none for the
command, one value a layer (there local layers are cut into blocks; a window slides).

L <= C is dense attention. Padding sorts after all buckets and is never seen. Source: Kitaev,
Kaiser, Levskaya 2020, arXiv 2001.04451; numbers as in google/trax and Hugging Face's Reformer.
There the list of chunks is ``wrap="circular"``: the first chunk of a round sees the last of the
round before; here it sees nothing before it by default. The function and its literal form are in
`everyformer.genes.mixers.reformer.function`.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import start
from everyformer.core.bounds import Affects, Bounds, Count, Dropout
from everyformer.core.choices import choose
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State, state
from everyformer.core.trace import record, tracing
from everyformer.core.trials import HEADS, LENGTH, WIDTH, Make, Pair, Trials, output
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.engines.content.hashing import (
    bucket_factors,
    check_factors,
    columns,
    lsh_buckets,
    lsh_buckets_reference,
    seeded_rotations,
)
from everyformer.engines.content.sorted_chunks import chunked_attention, chunked_queries
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Visibility
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import HeadMixer, Rows, rows_of
from everyformer.genes.mixers.reformer.function import (
    dense_attention,
    keys_of,
    lsh_attention,
    lsh_attention_reference,
    lsh_weights_reference,
    sorted_rows,
)


@dataclass(frozen=True)
class ReformerOptions(Options):
    """Options of `Reformer`."""

    rounds: Annotated[int, Bounds(1, 1024), Affects("results")] = 4
    """n_r, hashes of every token; more find more of the large weights"""
    evaluation_rounds: Annotated[int, Bounds(1, 1024), Affects("results")] | None = None
    """n_r outside training and with a state (default: as in training)"""
    chunk: Count = 64
    """C, sorted tokens that see each other"""
    buckets: Count | tuple[Count, ...] | None = None
    """even number of buckets, or even factors of it (default: 2 max_length / C, in two factors)"""
    wrap: Literal["none", "circular"] = "none"
    """what the first chunk of a round sees before it: nothing, or the round before (published)"""
    once: bool = False
    """count a key once however many rounds show it"""
    decode: Annotated[Literal["exact", "bucket"], Affects("results")] = "exact"
    """what new tokens of a state see: see the text"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    gone: ClassVar[dict[str, Any]] = {
        "look_back": 1, "look_ahead": None, "across_buckets": True, "redraw": True,
        "scale": 1.0,
    }  # fmt: skip


@state
class ReformerState(State):
    """Queries, values and buckets of the tokens seen."""

    num_tokens: Tensor
    held: KeyValueState
    """queries as keys, and values"""
    buckets: Tensor
    """(B, H, rounds, S)"""


def _limits(make: Make) -> list[Pair]:
    """Dense attention among others, with shared keys, where one window holds all tokens."""
    wide = make("reformer", chunk=LENGTH)
    # of two chunks the first sees the last one only around the end, or ahead
    around: dict[str, Any] = {"rounds": 1, "wrap": "circular"} if wide.causal else {}
    cut = make("reformer", chunk=-(-LENGTH // 2), **around)
    cut.load_state_dict(wide.state_dict())

    def dense(x: Tensor) -> Tensor:
        heads = (2, LENGTH, HEADS, WIDTH // HEADS)
        qk, v = (w(x).view(heads).transpose(1, 2) for w in (wide.query_key, wide.value))
        k = qk / (qk.square().sum(-1, keepdim=True) + qk.shape[-1] * 1e-6).sqrt()
        positions = torch.arange(LENGTH, device=x.device)
        others = positions[:, None] > positions if wide.causal else positions[:, None] != positions
        weights = (qk @ k.mT).masked_fill(~others, -torch.inf).softmax(-1)
        y = weights.nan_to_num(0.0) @ v
        if wide.causal:
            y = torch.cat((v[:, :, :1], y[:, :, 1:]), 2)
        return wide.out(y.transpose(1, 2).flatten(2))

    return [
        ("chunk >= L is dense", output(wide), dense),
        ("a window of all chunks is dense", output(cut), dense),
    ]


LEAKS = (
    "which earlier tokens a token sees depends on how many later ones hash before it; their "
    "content is never read"
)


@MIXERS.register("reformer")
class Reformer(HeadMixer):
    """Reformer's attention over (B, L, width): every head hashes by itself.

    ``max_length`` decides the default number of buckets; longer texts work too.

    Raises:
        GeneError: numbers of rounds, chunks or buckets that cannot be.
    """

    name = "reformer"
    trials = Trials(
        variants=(
            {"chunk": 4, "rounds": 2},
            {"chunk": 4, "rounds": 3, "wrap": "circular"},
            {"chunk": 4, "rounds": 3, "once": True},
            {"chunk": 3, "rounds": 2, "once": True, "wrap": "circular", "buckets": (4, 2)},
            {},
        ),
        limits=_limits,
    )
    states = (ReformerState,)
    shares_heads = True
    Options = ReformerOptions
    options: ReformerOptions

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o, causal = self.options, self.causal
        self.pattern = ChunkPattern(
            chunk=o.chunk, after=0 if causal else 1, causal=causal, circular=o.wrap == "circular",
            once=o.once,
        )  # fmt: skip
        self.factors = _factors(o, max_length)
        if causal and (max_length is None or max_length > o.chunk):
            self.non_causal_reason = LEAKS
        self.rounds = o.evaluation_rounds or o.rounds
        # not a buffer: it follows from the seed, and has to survive every dtype and device alike
        self.rotations = seeded_rotations(
            0, self.heads, self.rounds, self.head_dim, columns(self.factors)
        )
        self.query_key = nn.Linear(self.width, self.channels, bias=False)
        self.value = nn.Linear(self.width, self.channels, bias=False)
        self.out = nn.Linear(self.channels, self.width, bias=False)
        for linear in (self.query_key, self.value, self.out):
            start(linear)

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        (qk, v), padding_mask = self._project(rows.x), rows.padding_mask
        if (
            self.non_causal_reason is None
            and self.causal
            and self._length(rows, state) > self.options.chunk
        ):
            self.non_causal_reason = LEAKS  # a text longer than it was made for is no single chunk
        if state is None:
            # drawn outside of the choice, which a repetition does not make
            rotations = self._rotations(fixed=not self.training, like=qk)
            buckets = choose(lambda: lsh_buckets(qk, rotations, self.factors))
            return MixerOutput(self._attend(qk, v, buckets, padding_mask), None, {})
        assert isinstance(state, ReformerState)
        after = self._append(qk, v, rows, state)
        if state.buckets.shape[-1] == 0:
            return MixerOutput(self._attend(qk, v, after.buckets, padding_mask), after, {})
        y = self._continue(qk, after)
        y = y if padding_mask is None else y.masked_fill(~padding_mask[:, None, :, None], 0.0)
        return MixerOutput(self.merge(y), after, {})

    @staticmethod
    def _length(rows: Rows, state: State | None) -> int:
        before = state.buckets.shape[-1] if isinstance(state, ReformerState) else 0
        return rows.x.shape[1] + before

    def text_reference(self, text: Rows) -> Tensor:
        qk, v = self._project(text.x)
        rotations = self.rotations[:, : self.rounds].to(qk)
        buckets = lsh_buckets_reference(qk.detach(), rotations, self.factors)
        return self.merge(lsh_attention_reference(qk, v, buckets, self.pattern))

    def empty_state(self, batch: int, **like: Any) -> ReformerState:
        cache = KeyValueState.empty((batch, self.heads), self.head_dim, self.head_dim, **like)
        return ReformerState(cache.num_tokens, cache, self._hash(cache.keys))

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        self.check_input(x, None, mask, state)
        assert isinstance(state, ReformerState)
        rows = rows_of(x, mask)[0]
        return self._append(*self._project(rows.x), rows, state)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and values (B, H, L, D)."""
        shape = (*x.shape[:2], self.heads, self.head_dim)
        qk, v = self.query_key(x).view(shape), self.value(x).view(shape)
        return qk.transpose(1, 2), v.transpose(1, 2)

    def _rotations(self, fixed: bool, like: Tensor) -> Tensor:
        """(H, rounds, D, columns): those of the seed, or new ones."""
        if not fixed:
            shape = (self.heads, self.options.rounds, *self.rotations.shape[2:])
            return torch.randn(shape, device=like.device)
        return self.rotations[:, : self.rounds].to(like.device)

    def _hash(self, qk: Tensor) -> Tensor:
        """Buckets by the rotations of the seed."""
        return lsh_buckets(qk, self._rotations(fixed=True, like=qk), self.factors)

    def _attend(
        self, qk: Tensor, v: Tensor, buckets: Tensor, padding_mask: Tensor | None
    ) -> Tensor:
        o = self.options
        how: dict[str, Any] = {"padding_mask": padding_mask}
        if tracing():
            record(self, "buckets", lambda: buckets)
            record(self, "weights", lambda: lsh_weights_reference(qk, buckets, self.pattern, **how))
        if not torch.compiler.is_compiling() and qk.shape[2] <= o.chunk:
            y = dense_attention(qk, v, self.pattern, dropout=self.dropout, **how)
        else:
            y = lsh_attention(qk, v, buckets, self.pattern, dropout=self.dropout, **how)
        return self.merge(y)

    def _append(self, qk: Tensor, v: Tensor, rows: Rows, state: ReformerState) -> ReformerState:
        """The state with new tokens after the old ones."""
        cache = state.held.append(qk, v, rows.positions(state.num_tokens), rows.padding_mask)
        buckets = torch.cat((state.buckets, self._hash(qk)), -1)
        return ReformerState(cache.num_tokens, cache, buckets)

    def _continue(self, qk: Tensor, after: ReformerState) -> Tensor:
        """Outputs (B, H, n, D) of the last tokens of a state, by ``decode``."""
        o, pattern = self.options, self.pattern
        cache, count = after.held, qk.shape[2]
        padding_mask, length = cache.padding_mask, cache.keys.shape[2]
        last = torch.arange(length - count, length, device=qk.device)
        if o.decode == "bucket":
            return self._by_bucket(after, last)
        how: dict[str, Any] = {"padding_mask": padding_mask}
        if length <= o.chunk:
            return dense_attention(cache.keys, cache.values, pattern, **how)[:, :, -count:]
        rows = sorted_rows(cache.keys, cache.values, after.buckets, pattern, **how)
        if count > o.chunk:
            y = chunked_attention(*rows[:4], pattern, real=rows.real)[:, last]
        else:
            y = chunked_queries(*rows[:4], pattern, last, real=rows.real)
        return y.view(*qk.shape[:3], -1).to(qk.dtype)

    def _by_bucket(self, after: ReformerState, last: Tensor) -> Tensor:
        """Those of the same bucket in any round first, then the latest: one softmax over them."""
        o, cache = self.options, after.held
        keys, values, padding_mask = cache.keys, cache.values, cache.padding_mask
        positions = torch.arange(keys.shape[2], device=keys.device)
        mask = (positions < last[:, None])[None, None]
        mask = mask if padding_mask is None else mask & padding_mask[:, None, None]
        shares = (after.buckets[..., last, None] == after.buckets[..., None, :]).any(2)
        sort_key = (positions + shares * len(positions)).masked_fill(~mask, -1)
        most = min(o.chunk * self.pattern.width * self.rounds, len(positions))
        best = sort_key.topk(most, -1)
        chosen = torch.zeros_like(sort_key, dtype=torch.bool).scatter(
            -1, best.indices, best.values >= 0
        )
        of_queries, visible = keys[:, :, last], Visibility(mask=chosen)
        y = softmax_attention(of_queries, keys_of(keys), values, visible, scale=1.0)
        return torch.where(chosen.any(-1, keepdim=True), y, values[:, :, last])


def _factors(o: ReformerOptions, max_length: int | None) -> tuple[int, ...]:
    """Numbers of buckets whose product the hash has."""
    if o.buckets is None:
        if max_length is None:
            raise GeneError(
                "reformer takes its number of buckets from the longest text: give "
                "`max_length=...`, or `buckets=...`"
            )
        return bucket_factors(2 * max(1, max_length // o.chunk))
    factors = o.buckets if isinstance(o.buckets, tuple) else (o.buckets,)
    check_factors(factors)
    return factors
