"""Sorting by the matrix P of Sparse Sinkhorn attention: the nets that make its logits, attention to
sorted blocks of whole texts, and the same of causal texts in pieces.

Letters: B batch, H heads, N blocks of s tokens, D channels of a head.
"""

import math
from dataclasses import field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.errors import ShapeError
from everyformer.core.state import State, state
from everyformer.core.subset import gather_rows, order_of_real
from everyformer.engines.content.balance import NOTHING, balanced_row
from everyformer.engines.dropout import dropout as drop
from everyformer.engines.softmax.attention import attention_weights, softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Visibility

SortNet = Literal["linear", "mlp"]
Combine = Literal["concat", "sum-scores"]
Null = tuple[Tensor, Tensor]
"""The key and the value (H, 1, ...) that block 0 reads in place of an earlier block."""


class Sorter(nn.Module):
    """Logits of P from X', one vector a block: X' W, or relu(relu(X' W + b) W' + b').

    Args:
        kind: 'linear' or 'mlp'. width: channels of X'. blocks: of the longest text.
    """

    def __init__(self, kind: SortNet, heads: int, width: int, blocks: int) -> None:
        super().__init__()
        hidden = width // heads
        sizes = [(width, blocks)] if kind == "linear" else [(width, hidden), (hidden, blocks)]
        self.weights = nn.ParameterList(torch.empty(heads, *size) for size in sizes)
        self.biases = nn.ParameterList(
            torch.zeros(heads, 1, size) for _, size in sizes if kind == "mlp"
        )
        for weight in self.weights:
            for head in weight.data:
                nn.init.xavier_uniform_(head)

    def forward(self, pooled: Tensor, count: int) -> Tensor:
        """(B, H, N, count) of ``pooled`` (B, N, width), in its dtype."""
        read = pooled[:, None]
        if not self.biases:
            return read @ self.weights[0].to(read.dtype)[..., :count]
        read = (read @ self.weights[0].to(read.dtype) + self.biases[0]).relu()
        return (read @ self.weights[1].to(read.dtype) + self.biases[1]).relu()[..., :count]


class Sorted(NamedTuple):
    """Sorted blocks: psi(K), psi(V) and how much of them is real."""

    keys: Tensor
    """(B, H, N, s, D)"""
    values: Tensor
    """(B, H, N, s, D_v)"""
    level: Tensor | None
    """(B, H, N, s) log of the part of each token that is mixed of real ones; None: all is"""


def sorted_blocks(
    p: Tensor, k: Tensor, v: Tensor, real: Tensor | None, null: Null | None
) -> Sorted:
    """psi(K) and psi(V): blocks ``k`` and ``v`` (B, H, N, s, ...) mixed by ``p`` (B, H, N, N).

    Args:
        real: (B or 1, N, s) bool, where tokens are, if some may be missing.
        null: of block 0.
    """
    mixed = [(p.to(t.dtype) @ t.flatten(3)).unflatten(3, t.shape[3:]) for t in (k, v)]
    if null is not None:
        first = torch.arange(p.shape[-1], device=p.device) == 0
        first = first[:, None, None]
        mixed = [
            torch.where(first, n.to(t.dtype)[:, None], t) for n, t in zip(null, mixed, strict=True)
        ]
    if real is None:
        return Sorted(mixed[0], mixed[1], None)
    part = p @ real[:, None].to(p.dtype) / nonzero(p.sum(-1, keepdim=True))
    tiny = torch.finfo(p.dtype).tiny
    level = part.clamp(min=tiny).log().masked_fill(part < tiny, -math.inf)
    return Sorted(mixed[0], mixed[1], level)


def own_and_sorted(
    q: Tensor, k: Tensor, v: Tensor, far: Sorted, real: Tensor, combine: Combine, causal: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Queries of blocks (B, H, N, s, D) over their own and their sorted block: (B, H, N s, D_v)."""
    batch, size = q.shape[0], q.shape[3]
    if causal:
        near = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        past = torch.ones_like(near)
    else:
        assert far.level is not None
        own_level = torch.zeros_like(real, dtype=q.dtype).masked_fill(~real, -math.inf)
        past = far.level.to(q.dtype).transpose(1, 2)
        near = own_level[:, :, None].expand_as(past).flatten(0, 1)[:, :, None]
        past = past.flatten(0, 1)[:, :, None]
    # blocks beside the rows of the batch
    q, k, v, k_far, v_far = (
        t.transpose(1, 2).flatten(0, 1) for t in (q, k, v, far.keys, far.values)
    )

    if combine == "concat":
        keys, values = torch.cat((k_far, k), 2), torch.cat((v_far, v), 2)
        y = _read(q, keys, values, torch.cat((past, near), -1), dropout)
    else:
        y = _read(q, k_far + k, v_far, near if causal else past, dropout)
    return y.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def first_sorted(q: Tensor, far: Sorted, count: int, dropout: float) -> Tensor:
    """SortCut: all queries (B, H, L, D) over the first ``count`` sorted blocks: (B, H, L, D_v)."""
    assert far.level is not None
    parts = (far.keys, far.values, far.level)
    keys, values, level = (t[:, :, :count].flatten(2, 3) for t in parts)
    return _read(q, keys, values, level[:, :, None].to(q.dtype), dropout)


def _read(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Attention under a bool mask or under levels, which have a gradient."""
    visible = Visibility(mask=mask)
    if mask.dtype == torch.bool or not dropout:
        return softmax_attention(q, keys, values, visible, dropout=dropout)
    # written out, so that the same weights are dropped whether a gradient is asked for or not
    return drop(attention_weights(q, keys, visible), dropout).to(values.dtype) @ values


def nonzero(sums: Tensor) -> Tensor:
    """Sums to divide by, with one for none."""
    return torch.where(sums == 0, 1, sums)


KV = tuple[Tensor, Tensor]


@state
class SinkhornState(State):
    """Keys and values so far, and those sorted in for the block that is being filled."""

    num_tokens: Tensor
    cache: KeyValueState
    pooled: Tensor
    """(B, width) sum of inputs"""
    sorted_keys: Tensor
    """(B, H, s, D)"""
    sorted_values: Tensor
    """(B, H, s, D)"""
    columns: Tensor = field(metadata={"empty": NOTHING})
    """(B, H, iterations, N) logs of the columns' sums over the rows so far"""


def in_order(cache: KeyValueState) -> tuple[Tensor, Tensor]:
    """Keys and values (B, H, T, D) with token p of every row in slot p."""
    if cache.padding_mask is None:
        return cache.keys, cache.values
    order = order_of_real(cache.padding_mask)
    keys, values = (
        gather_rows(t.transpose(1, 2), order).transpose(1, 2) for t in (cache.keys, cache.values)
    )
    return keys, values


def begin_block(
    logits: Tensor, row: Tensor, begins: Tensor, cached: KV, state: SinkhornState, null: Null
) -> tuple[KV, Tensor]:
    """Sorted keys and values (B, H, s, D) of the block ``row`` (B,), and the columns' sums with it.

    Where no block ``begins`` (B,), those of the state.

    Args:
        logits: (B, H, N) of the row, of the whole blocks in ``cached``.
        cached: keys and values (B, H, T, D) in order.
    """
    old = state.sorted_keys, state.sorted_values
    whole, size = logits.shape[-1], state.sorted_keys.shape[2]
    blocks = [t[:, :, : whole * size].unflatten(2, (whole, size)) for t in cached]
    columns = state.columns
    earlier = (torch.arange(whole, device=row.device) < row[:, None])[:, None]
    p, sums = balanced_row(logits.to(columns.dtype), columns[..., :whole], earlier)
    new, at_first = (flags[:, None, None, None] for flags in (begins, row == 0))
    columns = torch.where(new, torch.cat((sums, columns[..., whole:]), -1), columns)
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
    else:
        # a row at the beginning of a block has the new one in the first half of its window
        half = torch.where((positions[:, :1] % size) == 0, 0, size)
        later = gather_rows(k.transpose(1, 2), half + window[:size]).transpose(1, 2)
        added = torch.cat((k[:, :, :size], later), 2)
        y = read(k_far + added, v_far, past & (window % size <= place % size))
    if mixture:
        every = torch.arange(keys.shape[2], device=q.device)
        y = y + read(keys, values, every <= positions[..., None])
    return y


def attend_token(
    q: Tensor, cached: KV, far: KV, first: int, combine: Combine, mixture: bool, dropout: float
) -> Tensor:
    """`attend_block` of one query (B, H, 1, D), of a block that begins in slot ``first`` in all
    rows; ``far``: what was sorted in for it."""

    def read(k: Tensor, v: Tensor) -> Tensor:
        return softmax_attention(q, k, v, Visibility(), dropout=dropout)

    own, each = tuple(t[:, :, first:] for t in cached), cached[0].shape[2] - first
    if combine == "concat":
        y = read(*(torch.cat(both, 2) for both in zip(far, own, strict=True)))
    else:
        y = read(far[0][:, :, :each] + own[0], far[1][:, :, :each])
    return y + read(*cached) if mixture else y


def pooled_reference(read: Tensor, size: int, causal: bool) -> Tensor:
    """Sums of the tokens of each block of ``read`` (L, ...); causal, of all tokens up to its
    first."""
    starts = range(0, len(read), size)
    return torch.stack([(read[: n + 1] if causal else read[n : n + size]).sum(0) for n in starts])


def sinkhorn_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, size: int, combine: Combine = "concat", *,
    causal: bool = False, null: Tensor | None = None, sortcut: int | None = None,
    mixture: bool = False,
) -> Tensor:  # fmt: skip
    """The definition, one query at a time: q, k, v (H, L, D), P (H, N, N).

    ``null`` (2, H, 1, D) is the key and value that block 0 reads where causal.
    """
    blocks = -(-q.shape[1] // size)
    if p.shape[-2:] != (blocks, blocks):
        raise ShapeError(f"p is {tuple(p.shape)}, but there are {blocks} blocks of {size}")
    scale, outputs = 1 / math.sqrt(q.shape[-1]), []
    far = [_sorted_literally(p, k, v, size, i, null) for i in range(blocks)]
    for t in range(q.shape[1]):
        i = t // size
        last = t + 1 if causal else min(q.shape[1], (i + 1) * size)
        own = slice(i * size, last)
        query = q[:, t : t + 1] * scale
        if sortcut is not None:
            parts = [torch.cat([f[n] for f in far[:sortcut]], 1) for n in range(3)]
            y = _softmax(query, parts[0], parts[2]) @ parts[1]
        else:
            keys, values, level = far[i]
            near = torch.zeros_like(k[:, own, 0])
            if combine == "concat":
                both = (torch.cat(two, 1) for two in ((keys, k[:, own]), (level, near)))
                y = _softmax(query, *both) @ torch.cat((values, v[:, own]), 1)
            else:
                more = torch.zeros_like(keys).index_copy(
                    1, torch.arange(last - i * size, device=k.device), k[:, own]
                )
                seen = last - i * size if causal else size
                weights = _softmax(query, (keys + more)[:, :seen], level[:, :seen])
                y = weights @ values[:, :seen]
        if mixture:
            seen = last if causal else q.shape[1]
            y = y + torch.softmax(query @ k[:, :seen].mT, -1) @ v[:, :seen]
        outputs.append(y)
    return torch.cat(outputs, 1)


def _softmax(q: Tensor, k: Tensor, level: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT + level[:, None], -1)


def _sorted_literally(
    p: Tensor, k: Tensor, v: Tensor, size: int, i: int, null: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and the log of the real part of each token of the block sorted to block i."""
    if null is not None and i == 0:
        keys, values = (n.expand(-1, size, -1) for n in null)
        return keys, values, torch.zeros_like(keys[..., 0])
    rows = []
    for r in range(size):
        js = [j for j in range(p.shape[-1]) if j * size + r < k.shape[1]]
        at = [j * size + r for j in js]
        weight = p[:, i, js].to(k.dtype)
        real = weight.sum(-1) / nonzero(p[:, i].sum(-1).to(k.dtype))
        mixed = [(weight[..., None] * t[:, at]).sum(1) for t in (k, v)]
        log = torch.where(real > 0, real.clamp(min=torch.finfo(real.dtype).tiny).log(), -math.inf)
        rows.append((*mixed, log))
    keys, values, level = (torch.stack(parts, 1) for parts in zip(*rows, strict=True))
    return keys, values, level
