"""Sorting by the matrix P of Sparse Sinkhorn attention, and the nets that make its logits.

Letters: B batch, H heads, N blocks of s tokens, D channels of a head.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.choices import choose
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility

SortNet = Literal["linear", "mlp", "bilinear"]
Combine = Literal["concat", "sum-scores", "sum-out"]
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


def compared(pooled: Tensor, means: Tensor) -> Tensor:
    """Logits (B, H, N, N') of means of queries (B, N, H D) with ``means`` of keys (B, H, N', D)."""
    q = pooled.unflatten(-1, (means.shape[1], -1)).transpose(1, 2)
    return q @ means.mT / math.sqrt(means.shape[-1])


def hardened(p: Tensor) -> Tensor:
    """Hard P: one at the largest entry of every row that has any, with the gradient of ``p``."""
    if p.shape[-1] == 0:
        return p
    column = torch.arange(p.shape[-1], device=p.device)
    largest = column == choose(lambda: p.argmax(-1, keepdim=True).int())
    return (largest & (p.sum(-1, keepdim=True) > 0)).to(p.dtype) + (p - p.detach())


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

    def read(keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        return softmax_attention(q, keys, values, Visibility(mask=mask), dropout=dropout)

    if combine == "concat":
        y = read(torch.cat((k_far, k), 2), torch.cat((v_far, v), 2), torch.cat((past, near), -1))
    elif combine == "sum-scores":
        y = read(k_far + k, v_far, near if causal else past)
    else:
        y = read(k_far, v_far, past) + read(k, v, near)
    return y.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def first_sorted(q: Tensor, far: Sorted, count: int, dropout: float) -> Tensor:
    """SortCut: all queries (B, H, L, D) over the first ``count`` sorted blocks: (B, H, L, D_v)."""
    assert far.level is not None
    parts = (far.keys, far.values, far.level)
    keys, values, level = (t[:, :, :count].flatten(2, 3) for t in parts)
    visible = Visibility(mask=level[:, :, None].to(q.dtype))
    return softmax_attention(q, keys, values, visible, dropout=dropout)


def nonzero(sums: Tensor) -> Tensor:
    """Sums to divide by, with one for none."""
    return torch.where(sums == 0, 1, sums)
