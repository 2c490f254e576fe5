"""Causal Sinkhorn attention in pieces: its state, the block that begins, and attention in it.

Letters: B batch, H heads, N blocks of s tokens, D channels of a head.
"""

from __future__ import annotations

from dataclasses import field

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.chosen import gather_rows, order_of_real
from everyformer.core.state import State, state
from everyformer.engines.content.balance import NOTHING, balanced_row
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Visibility
from everyformer.genes.mixers.sinkhorn.sorting import Combine, Null, hardened

KV = tuple[Tensor, Tensor]


@state
class SinkhornState(State):
    """Keys and values so far, and those sorted in for the block that is being filled."""

    seen: Tensor
    cache: KeyValueState
    pooled: Tensor
    """(B, width) sum of inputs, of queries where the net is bilinear"""
    sorted_keys: Tensor
    """(B, H, s, D)"""
    sorted_values: Tensor
    """(B, H, s, D)"""
    columns: Tensor = field(metadata={"empty": NOTHING})
    """(B, H, iterations, N) logs of the columns' sums over the rows so far"""


def in_order(cache: KeyValueState) -> tuple[Tensor, Tensor]:
    """Keys and values (B, H, T, D) with token p of every row in slot p."""
    if cache.keep is None:
        return cache.keys, cache.values
    order = order_of_real(cache.keep)
    keys, values = (
        gather_rows(t.transpose(1, 2), order).transpose(1, 2) for t in (cache.keys, cache.values)
    )
    return keys, values


def begin_block(
    logits: Tensor, row: Tensor, begins: Tensor, cached: KV, state: SinkhornState, null: Null,
    hard: bool,
) -> tuple[KV, Tensor]:  # fmt: skip
    """Sorted keys and values (B, H, s, D) of the block ``row`` (B,), and the columns' sums with it.

    Where no block ``begins`` (B,), those of the state.

    Args:
        logits: (B, H, N) of the row, of the whole blocks in ``cached``.
        cached: keys and values (B, H, T, D) in order.
    """
    old = state.sorted_keys, state.sorted_values
    whole, size = logits.shape[-1], state.sorted_keys.shape[2]
    blocks = [t[:, :, : whole * size].unflatten(2, (whole, size)) for t in cached]
    missing = max(0, whole - state.columns.shape[-1])
    columns = F.pad(state.columns, (0, missing), value=NOTHING)
    earlier = (torch.arange(whole, device=row.device) < row[:, None])[:, None]
    p, sums = balanced_row(logits.to(columns.dtype), columns[..., :whole], earlier)
    new, at_first = (flags[:, None, None, None] for flags in (begins, row == 0))
    columns = torch.where(new, torch.cat((sums, columns[..., whole:]), -1), columns)
    p = hardened(p) if hard else p
    out = []
    for t, nothing, before in zip(blocks, null, old, strict=True):
        mixed = (p[:, :, None].to(t.dtype) @ t.flatten(3)).view_as(before)
        out.append(torch.where(new, torch.where(at_first, nothing.to(t.dtype), mixed), before))
    return (out[0], out[1]), columns


def attend_block(
    q: Tensor, cached: KV, old: KV, new: KV, positions: Tensor, in_next: Tensor,
    combine: Combine, mixture: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """Queries (B, H, L, D) over their own block and what was sorted in for it: (B, H, L, D).

    Args:
        cached: keys and values (B, H, T, D) in order. old, new: sorted ones (B, H, s, D) of the
            block that a row was in, and of the one that begins.
        positions: (B, L) of the tokens. in_next: (B, L) bool, the tokens of the block that begins.
    """
    (keys, values), size = cached, old[0].shape[2]
    first = positions[:, :1] // size * size
    window = torch.arange(2 * size, device=q.device)
    index = (first + window).clamp(max=keys.shape[2] - 1)
    k, v = (gather_rows(t.transpose(1, 2), index).transpose(1, 2) for t in (keys, values))
    place = (positions - first)[..., None]
    own = (window <= place) & (window // size == place // size)
    k_far, v_far = (torch.cat(both, 2) for both in zip(old, new, strict=True))
    past = torch.stack((~in_next, in_next), -1).repeat_interleave(size, -1)

    def read(k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        return softmax_attention(q, k, v, Visibility(mask=visible[:, None]), dropout=dropout)

    if combine == "concat":
        y = read(torch.cat((k_far, k), 2), torch.cat((v_far, v), 2), torch.cat((past, own), -1))
    elif combine == "sum-scores":
        # a row at the beginning of a block has the new one in the first half of its window
        half = torch.where((positions[:, :1] % size) == 0, 0, size)
        later = gather_rows(k.transpose(1, 2), half + window[:size]).transpose(1, 2)
        added = torch.cat((k[:, :, :size], later), 2)
        y = read(k_far + added, v_far, past & (window % size <= place % size))
    else:
        y = read(k_far, v_far, past) + read(k, v, own)
    if mixture:
        every = torch.arange(keys.shape[2], device=q.device)
        y = y + read(keys, values, every <= positions[..., None])
    return y
