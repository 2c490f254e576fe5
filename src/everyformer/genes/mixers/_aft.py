"""Attention-Free Transformers: what the four members share; their equations are in their files.

    Y = gate(Q) * softmax average of V,   out = Y W_o

Rows have their real tokens in front, so position t of a table means the t-th real token.

Letters: B batch, L length, d width, H heads (tables of position biases), n biased offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, ShapeError, require_word
from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.shared import advanced
from everyformer.core.state import State, state
from everyformer.core.trace import record, tracing
from everyformer.engines.averages.running import total_average
from everyformer.engines.ranges import full_precision, widened
from everyformer.engines.remade import by_pieces, read
from everyformer.engines.rows import next_window
from everyformer.genes.mixers.base import Rows, StreamingMixer, rows_of

Gate = Literal["sigmoid", "relu", "identity"]
_GATES: dict[Gate, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "identity": lambda q: q,
}
Grid = tuple[int, int]
Factors = tuple[Tensor, Tensor]
Average = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class AFTOptions(Options):
    """Options of every AFT."""

    gate: Gate = "sigmoid"
    """what the queries go through before they scale the average; the paper's is the sigmoid"""
    bias: bool = True
    """whether the four projections have a bias"""


def hide_padding(k: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Keys (B, L, ...), -inf at padding; rows of padding alone stay: their outputs are dropped."""
    if padding_mask is None:
        return k
    visible = padding_mask | ~padding_mask.any(1, keepdim=True)
    return k.masked_fill(~visible.view(*padding_mask.shape, *[1] * (k.dim() - 2)), -math.inf)


def gated(gate: Gate, q: Tensor, average: Tensor) -> Tensor:
    """gate(Q) times the average, in Q's dtype."""
    return _GATES[gate](q) * average.to(q.dtype)


def gated_average(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, gate: Gate, average: Average
) -> Tensor:
    """``average`` (k, v, keep) on rows with the real tokens first, gated: the functional form."""
    require_word("gate", gate, _GATES)
    if q.shape != v.shape or k.shape[:-1] != v.shape[:-1] or v.dim() != 3:
        raise ShapeError(
            "q and v must be (batch, length, width) and k must go with them, not "
            f"{tuple(q.shape)}, {tuple(v.shape)} and {tuple(k.shape)}"
        )
    if 0 in v.shape[:2]:
        return gated(gate, q, v)  # the blocks of no rows or no tokens have no size
    if mask is None:
        return gated(gate, q, average(k, v, None))
    mask.require("this AFT", frozenset({"padding_mask", "documents"}))
    mask.check(q.shape[0], q.shape[1], q.shape[1])
    rows, restore = rows_of(torch.cat([q, k, v], -1), mask)
    q, k, v = rows.x.split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)
    return restore(gated(gate, q, average(k, v, rows.padding_mask)))


def split_heads(t: Tensor, heads: int) -> Tensor:
    """(B, L, c) as (B, L, heads, c / heads)."""
    if t.shape[-1] % heads:
        raise ShapeError(f"{t.shape[-1]} channels do not divide by {heads} heads")
    return t.unflatten(-1, (heads, -1))


def batch_as_heads(t: Tensor) -> Tensor:
    """(B, L, c) as (1, L, B, c): rows that each look up a table of their own are heads of one."""
    return t.transpose(0, 1)[None]


def heads_as_batch(t: Tensor) -> Tensor:
    """The reverse of `batch_as_heads`."""
    return t[0].transpose(0, 1)


def as_tables(w: Tensor | Factors, length: int) -> Tensor | Factors:
    """Tables (H, ...) for positions below ``length``, from one table or one a head, or factors."""
    if isinstance(w, tuple):
        u, v = (f if f.dim() == 3 else f[None] for f in w)
        if min(u.shape[1], v.shape[1]) < length or u.shape[2] != v.shape[2]:
            raise ShapeError(
                f"the factors of w must be ([heads,] {length} or more, rank) each, not "
                f"{tuple(u.shape)} and {tuple(v.shape)}"
            )
        return u, v
    w = w if w.dim() == 3 else w[None]
    if min(w.shape[1:]) < length:
        raise ShapeError(
            f"w must be ([heads,] {length}, {length}) or larger for {length} tokens, not "
            f"{tuple(w.shape)}"
        )
    return w


def dense_table(w: Tensor | Factors, length: int) -> Tensor:
    """w (H, length, length) itself."""
    w = as_tables(w, length)
    if isinstance(w, tuple):
        return w[0][:, :length] @ w[1][:, :length].transpose(1, 2)
    return w[:, :length, :length]


class PositionBias(nn.Module):
    """w for positions below ``length``: factors w_{t,t'} = u_t . v_t', or a table of ``columns``.

    All start at N(0, 0.01^2): were both factors zero, neither would get a gradient.
    """

    def __init__(self, length: int, columns: int, rank: int | None) -> None:
        super().__init__()

        def draw(size: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(1, length, size) * 0.01)

        self.table = draw(columns) if rank is None else None
        self.u = None if rank is None else draw(rank)
        self.v = None if rank is None else draw(rank)

    @property
    def w(self) -> Tensor | Factors:
        """The table (1, length, columns), or the factors (1, length, rank)."""
        if self.table is not None:
            return self.table
        assert self.u is not None
        assert self.v is not None
        return self.u, self.v


@state
class BandState(State):
    """State of a member whose bias is local: of one size, however long the text."""

    num_tokens: Tensor
    average: Tensor
    """(B, d) softmax average of all tokens older than the buffer"""
    values: Tensor
    """(B, n - 1, d) of the last tokens, newest last"""
    lse: Tensor = field(metadata={"empty": -math.inf})
    """(B, K) log of the sum of weights of ``average``; K key channels"""
    keys: Tensor = field(metadata={"empty": -math.inf})
    """(B, n - 1, K) of the last tokens; -inf where there is none yet"""

    @classmethod
    def empty(cls, batch: int, buffer: int, keys: int, width: int, **like: Any) -> BandState:
        """The state before the first token; ``like``: device and dtype (sums: float32 at least)."""
        wide = like | {"dtype": torch.promote_types(like["dtype"], torch.float32)}
        return cls(
            num_tokens=torch.zeros(batch, dtype=torch.long, device=like["device"]),
            lse=torch.full((batch, keys), -math.inf, **wide),
            average=torch.zeros(batch, width, **wide),
            keys=torch.full((batch, buffer, keys), -math.inf, **like),
            values=torch.zeros(batch, buffer, width, **like),
        )

    def extended(self, k: Tensor, v: Tensor) -> Factors:
        """New keys and values (B, L, ...) after the carried average and the buffer."""
        keys = torch.cat([self.lse[:, None], self.keys, k], 1)
        return keys, torch.cat([self.average[:, None], self.values, v], 1)

    def step(self, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, BandState]:
        """The average (B, 1, d) of all tokens for the next one, a real one, and the state after it.

        Args:
            k, v: (B, 1, ...) its key and value.
            bias: (1 + n, K or 1), 0 for the carried average, then of the last n tokens.
        """
        keys, values = self.extended(k, v)
        with full_precision(k):
            weights = torch.softmax(widened(keys) + bias, 1)
            if k.shape[2] == v.shape[2]:
                average = (weights * values).sum(1, keepdim=True)
            else:
                heads = split_heads(values, k.shape[2]).transpose(1, 2).to(weights.dtype)
                average = (weights.mT[:, :, None] @ heads).flatten(1)[:, None]
        return average.to(v.dtype), self._moved_on(keys, values)

    def _moved_on(self, keys: Tensor, values: Tensor) -> BandState:
        """The state after one token of ``extended`` keys and values: the oldest of the buffer joins
        the average."""
        key, lowest = widened(keys[:, 1]), torch.finfo(self.lse.dtype).min
        lse = torch.logaddexp(self.lse, key)
        # nothing joins nothing until the buffer is full
        weight = torch.exp(key - lse.clamp(min=lowest))
        before, joins = (t.unflatten(1, (key.shape[1], -1)) for t in (self.average, values[:, 1]))
        average = torch.lerp(before, joins.to(before.dtype), weight[..., None]).flatten(1)
        return BandState(
            num_tokens=advanced(self.num_tokens, 1),
            average=average,
            values=values[:, 2:].to(self.values.dtype),
            lse=lse,
            keys=keys[:, 2:].to(self.keys.dtype),
        )

    def after(self, k: Tensor, v: Tensor, length: int, padding_mask: Tensor | None) -> BandState:
        """The state once the last ``length`` tokens of ``extended`` keys and values are read."""
        buffer = self.keys.shape[1]
        if padding_mask is None:
            old = k[:, : 1 + length]
        else:
            later = torch.arange(k.shape[1], device=k.device) > padding_mask.sum(1)[:, None]
            old = k.masked_fill(later[..., None], -math.inf)
        keys, values = (next_window(t[:, 1:], buffer, padding_mask) for t in (k, v))
        num_tokens = advanced(self.num_tokens, length, padding_mask)
        return self._made(num_tokens, old, v[:, : old.shape[1]], keys, values)

    def _made(
        self, num_tokens: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
    ) -> BandState:
        """The state with ``keys`` and ``values`` in the buffer, ``k`` and ``v`` in the average."""
        heads = k.shape[2]
        lse, average = total_average(split_heads(k, heads), split_heads(v, heads))
        return BandState(
            num_tokens=num_tokens,
            average=average.flatten(1).to(self.average.dtype),
            values=values.to(self.values.dtype),
            lse=lse.flatten(1).to(self.lse.dtype),
            keys=keys.to(self.keys.dtype),
        )


class AttentionFree(StreamingMixer):
    """An AFT over (B, L, width): projections and gate; a member adds how V is averaged.

    Heads are groups of channels that may have a key or a bias of their own.
    """

    shares_heads = True

    def build(self, max_length: int | None) -> None:
        keys, bias = self.key_channels(), self.options.bias
        self.query = nn.Linear(self.width, self.channels, bias=bias)
        self.key = nn.Linear(self.width, keys, bias=bias)
        self.value = nn.Linear(self.width, self.channels, bias=bias)
        self.out = nn.Linear(self.channels, self.width, bias=bias)

    def key_channels(self) -> int:
        """Channels of K."""
        return self.channels

    def hold_table(self, max_length: int | None, pairs: str) -> int:
        """The lines of a table over ``pairs`` of positions."""
        if max_length is None or max_length < 1:
            raise ConfigError(
                f"{self.name} holds a bias for {pairs} of positions, so it needs max_length (got "
                f"{max_length}): give `max_length=...`, or use aft-conv or aft-simple"
            )
        self.max_length = max_length
        return max_length

    def average(self, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        """Softmax averages (B, L, d) of whole rows."""
        raise NotImplementedError

    def resume(
        self, k: Tensor, v: Tensor, padding_mask: Tensor | None, state: Any
    ) -> tuple[Tensor, State]:
        """Softmax averages of tokens that continue those of ``state``, and the state after them."""
        raise NotImplementedError

    def reference_average(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        """The member's reference function; ``how``: ``causal``, ``mask`` and ``gate``."""
        raise NotImplementedError

    def dense_bias(self, length: int, grid: Grid | None = None) -> Tensor:
        """w (H, length, length) of the first positions, as the equation has it."""
        raise NotImplementedError

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        q, k, v = self.query(rows.x), self.key(rows.x), self.value(rows.x)
        after = None
        if state is None:
            self.check_length(k.shape[1])
            average = self.average(k, v, rows)
            if tracing():
                self.show(k, rows)
        else:
            average, after = self.resume(k, v, rows.padding_mask, state)
        q = _GATES[self.options.gate](q)
        y = by_pieces(
            lambda _, *z: read(self.out, torch.mul, *z), self.width, q, average.to(q.dtype)
        )
        return MixerOutput(y, after, {})

    def text_reference(self, text: Rows) -> Tensor:
        heads = (project(text.x) for project in (self.query, self.key, self.value))
        mask = Mask(padding_mask=text.padding_mask, grid=text.grid)
        y = self.reference_average(*heads, causal=self.causal, mask=mask, gate=self.options.gate)
        return self.out(y)

    def show(self, k: Tensor, rows: Rows) -> None:
        """Offer w (H, L, L) and the weights of real tokens (B, 1, L, L), mean over channels."""
        w = self.dense_bias(k.shape[1], rows.grid)
        record(self, "position_bias", lambda: w)
        record(
            self,
            "weights",
            lambda: mean_weights(hide_padding(k, rows.padding_mask), w, self.causal),
        )


MOST_WEIGHTS = 2**22
"""that are made at once for a picture: 16 MiB"""


def mean_weights(k: Tensor, w: Tensor, causal: bool) -> Tensor:
    """softmax over t' of K_t' + w_{t,t'}, averaged over the channels of k: (B, 1, L, L)."""
    heads = split_heads(k, w.shape[0])
    future = torch.ones_like(w[0], dtype=torch.bool).triu(1) & causal
    total = k.new_zeros(k.shape[0], *w.shape[1:])
    at_once = max(1, MOST_WEIGHTS // total.numel())
    for h in range(w.shape[0]):
        scores = w[h].masked_fill(future, -math.inf)
        for channels in heads[:, :, h].transpose(1, 2).split(at_once, 1):
            total += torch.softmax(channels[:, :, None] + scores, -1).sum(1)
    return (total / k.shape[-1])[:, None]
