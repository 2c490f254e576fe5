"""AFT-full: the Attention-Free Transformer with a learned bias for every pair of positions.

    Y_t = sigma_q(Q_t) * sum_t' exp(K_t' + w_{t,t'}) * V_t' / sum_t' exp(K_t' + w_{t,t'})

elementwise over channels; t' <= t when causal. Symbols: Q, K, V (T, d) are ``q``, ``k``, ``v``;
w (T, T) is ``w``, one number a pair, shared by all channels; its factors u, v (T, d') with
w_{t,t'} = u_t . v_t' and d' = ``rank`` are parameters ``u``, ``v``; sigma_q is ``gate``; T is L.

It is multi-head attention with d heads of one channel, queries of 1 and an additive bias. The d
attention matrices are never formed, because exp(K + w) = exp(K) exp(w) and exp(w) is shared.

Cost: O(L^2 d) time, O(L d + L^2) memory, the L^2 part shared by batch and channels; from factors it
ends at 64 MB saved for training (`engines.averages.dense`). State: all keys and values, 2 t d.
Tables fix the longest sequence.
Source: Zhai et al. 2021, arXiv 2105.14103, eq. 2 and section 3.3.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Count
from everyformer.core.mask import Mask, positions_of, runs_of
from everyformer.core.shared import advanced, shared
from everyformer.core.state import state
from everyformer.core.trials import Make, Pair, Trials, output
from everyformer.engines.averages.dense import dense_average
from everyformer.engines.growing import Growing
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility, all_read
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._aft import (
    AFTOptions,
    AttentionFree,
    Factors,
    Gate,
    Grid,
    PositionBias,
    as_tables,
    batch_as_heads,
    dense_table,
    gated,
    gated_average,
    heads_as_batch,
    hide_padding,
    split_heads,
)
from everyformer.genes.mixers.base import Rows


@dataclass(frozen=True)
class AFTFullOptions(AFTOptions):
    """Options of `AFTFull`."""

    rank: Count | None = 128
    """d', the channels of the factors u and v of w; None learns w itself, max_length^2 numbers"""


def aft_full_reference(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor | Factors, *, causal: bool = False,
    mask: Mask | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """The definition, with all (B, L, L, d) weights. Arguments as in `aft_full`."""
    batch, length, width = v.shape
    table = w[0] @ w[1].transpose(-1, -2) if isinstance(w, tuple) else w
    table = table if table.dim() == 3 else table[None]
    position = positions_of(batch, length, mask, None, q.device).expand(batch, -1)
    bias = table[:, position[:, :, None], position[:, None, :]].permute(1, 2, 3, 0)
    scores = k[:, None] + bias.repeat_interleave(width // bias.shape[-1], -1)
    visible = torch.ones(batch, length, length, dtype=torch.bool, device=q.device)
    visible = visible.tril() if causal else visible
    real = torch.ones(batch, length, dtype=torch.bool, device=q.device)
    if mask is not None and mask.padding_mask is not None:
        real = mask.padding_mask
    if mask is not None and mask.documents is not None:
        runs = runs_of(mask.documents, mask.padding_mask)
        visible = visible & (runs[:, :, None] == runs[:, None, :])
    visible = visible & real[:, None, :] & real[:, :, None]
    weights = torch.softmax(scores.masked_fill(~visible[..., None], -math.inf), 2)
    average = (weights.nan_to_num(0.0) * v[:, None]).sum(2)
    return gated(gate, q, average) * real[..., None]


def aft_full(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor | Factors, *, causal: bool = False,
    mask: Mask | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """gate(q) times the softmax average of ``v``, weighted by ``k`` + ``w``.

    Args:
        q, k, v: (B, L, d).
        w: (N, N) or one a head (heads, N, N), N >= L, row = query; or its factors (u, v), each
            ([heads,] N, rank), w = u v^T, which is then never held whole.
        causal: average over t' <= t instead of all positions.
        mask: ``padding_mask``, ``documents`` are honoured; padded outputs are 0. Position t of w
            is the t-th real token of a row or document.
        gate: "sigmoid", "relu" or "identity".

    Returns:
        (B, L, d) in q's dtype.

    Raises:
        ShapeError: the tensors do not go together, or w is too small.
    """
    return gated_average(q, k, v, mask, gate, partial(full_average, w=w, causal=causal))


def full_average(
    k: Tensor, v: Tensor, padding_mask: Tensor | None, w: Tensor | Factors, causal: bool
) -> Tensor:
    """Averages (B, L, d) of rows whose real tokens come first."""
    length = k.shape[1]
    w = as_tables(w, length)
    rows, columns = (w[0], w[1][:, :length]) if isinstance(w, tuple) else (w[..., :length], None)
    # padding is last: causal queries do not see it
    k = k if causal else hide_padding(k, padding_mask)
    heads = rows.shape[0]
    k, v = split_heads(k, heads), split_heads(v, heads)
    return dense_average(k, v, rows[:, :length], columns, causal=causal).flatten(2)


def one_average(k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """The average (B, 1, d) of all tokens (B, S, d) under biases ``w`` (B or 1, S): softmax
    attention of a head for each channel, with a query of 1.

    The weights of one query are fewer bytes than the sums that many queries share.
    """
    one = shared(_ones, (k.shape[0], k.shape[2], 1, 1), k.dtype, k.device)
    mask = Visibility(mask=w[:, None, None])
    y = softmax_attention(one, k.mT[..., None], v.mT[..., None], mask, scale=1.0)
    return y.squeeze(3).mT


def _ones(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


@state
class FullState(Growing):
    """Keys and values of all tokens seen; the t-th real token of a row is in slot t."""

    grows = ("keys", "values")
    slot_dim = 1
    num_tokens: Tensor
    keys: Tensor
    """(B, S, d), S >= the largest ``num_tokens``"""
    values: Tensor
    """(B, S, d)"""


def _limits(make: Make) -> list[Pair]:
    """A bias of zero is AFT-simple."""
    flat, simple = make("aft-full", rank=None), make("aft-simple")
    simple.load_state_dict(flat.state_dict(), strict=False)
    for name, table in flat.named_parameters():
        if name not in dict(simple.named_parameters()):
            nn.init.zeros_(table)
    return [("w = 0 is AFT-simple", output(flat), output(simple))]


@MIXERS.register("aft-full")
class AFTFull(AttentionFree):
    """AFT-full over (B, L, width); ``max_length``, the size of w, is required.

    Raises:
        ConfigError: max_length is missing.
    """

    name = "aft-full"
    trials = Trials(variants=({}, {"rank": None}, {"rank": 4, "gate": "relu"}), limits=_limits)
    Options = AFTFullOptions
    options: AFTFullOptions
    states = (FullState,)

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        lines = self.hold_table(max_length, "every pair")
        self.position = PositionBias(lines, lines, self.options.rank)

    def average(self, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        return full_average(k, v, rows.padding_mask, self.position.w, self.causal)

    def resume(
        self, k: Tensor, v: Tensor, padding_mask: Tensor | None, state: FullState
    ) -> tuple[Tensor, FullState]:
        """New tokens go into the slots after those seen; each row looks up its own rows of w."""
        assert self.max_length is not None
        batch, length, _ = k.shape
        num_tokens, slots = advanced(state.num_tokens, length, padding_mask), state.keys.shape[1]
        if padding_mask is None and length == 1 and all_read(state.num_tokens, slots):
            self.check_length(slots + 1)
            (keys, values), room = state.grown(k, v)
            after = FullState(num_tokens, keys, values).in_room(room)
            return one_average(keys, values, self._line(slots)[None]).to(v.dtype), after
        self.check_seen(num_tokens)
        position = state.num_tokens[:, None] + torch.arange(length, device=k.device)

        def grown(old: Tensor, new: Tensor) -> Tensor:
            slots = F.pad(old, (0, 0, 0, length))
            slots = slots.scatter(1, position[..., None].expand_as(new), new.to(old.dtype))
            return slots[:, : self.max_length]

        if padding_mask is None and all_read(state.num_tokens, slots):
            # all rows have read as much: new tokens go to the end
            (keys, values), room = state.grown(k, v)
            after = FullState(num_tokens, keys, values).in_room(room)
        else:
            after = FullState(num_tokens, grown(state.keys, k), grown(state.values, v))
        if state.keys.shape[1] == 0:
            return full_average(k, v, padding_mask, self.position.w, True), after
        position, slots = position.clamp(max=self.max_length - 1), after.keys.shape[1]
        w = self.position.w
        rows, columns = (w, None) if isinstance(w, Tensor) else w
        rows = rows[..., :slots] if columns is None else rows
        if length == 1:
            line = rows[0][position[:, 0]]
            line = line if columns is None else line @ columns[0, :slots].mT
            later = torch.arange(slots, device=k.device) > state.num_tokens[:, None]
            line = line.masked_fill(later, -math.inf)
            return one_average(after.keys, after.values, line).to(v.dtype), after
        if columns is not None:
            columns = columns[:, :slots].expand(batch, -1, -1)
        keys, values = batch_as_heads(after.keys), batch_as_heads(after.values)
        o = dense_average(
            keys, values, rows[0][position], columns, causal=True, offset=state.num_tokens
        )
        return heads_as_batch(o).to(v.dtype), after

    def _line(self, t: int) -> Tensor:
        """w of the query at position ``t`` and all keys up to it: (t + 1,)."""
        w = self.position.w
        return w[0, t, : t + 1] if isinstance(w, Tensor) else w[1][0, : t + 1] @ w[0][0, t]

    def dense_bias(self, length: int, grid: Grid | None = None) -> Tensor:
        return dense_table(self.position.w, length)

    def reference_average(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return aft_full_reference(q, k, v, self.position.w, **how)

    def empty_state(self, batch: int, **like: Any) -> FullState:
        none = torch.zeros(batch, 0, self.channels, **like)
        num_tokens = torch.zeros(batch, dtype=torch.long, device=none.device)
        return FullState(num_tokens, none, none.clone())
