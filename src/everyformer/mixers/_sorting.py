"""What Sparse Sinkhorn attention does with its matrix P, and the nets that make logits of it.

Letters: B batch, H heads, N blocks of s tokens, D channels of a head.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.choices import choose
from everyformer.core.errors import ShapeError
from everyformer.engines.softmax.attention import Visibility, softmax_attention

SortNet = Literal["linear", "mlp", "bilinear"]
Combine = Literal["concat", "sum-scores", "sum-out"]
Null = tuple[Tensor, Tensor]
"""The key and the value (H, 1, ...) that block 0 reads in place of an earlier block."""


class Sorter(nn.Module):
    """Logits of P from what stands for a block: X' W, or relu(relu(X' W + b) W' + b').

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
    """One at the largest entry of every row that has any, with the gradient of ``p``."""
    if p.shape[-1] == 0:
        return p
    place = torch.arange(p.shape[-1], device=p.device)
    largest = place == choose(lambda: p.argmax(-1, keepdim=True).int())
    return (largest & (p.sum(-1, keepdim=True) > 0)).to(p.dtype) + (p - p.detach())


class Far(NamedTuple):
    """Sorted blocks."""

    keys: Tensor
    """(B, H, N, s, D)"""
    values: Tensor
    """(B, H, N, s, D_v)"""
    level: Tensor | None
    """(B, H, N, s) log of the part of each place that is made of real tokens; None: all is"""


def sorted_blocks(p: Tensor, k: Tensor, v: Tensor, real: Tensor | None, null: Null | None) -> Far:
    """psi(K) and psi(V): blocks ``k`` and ``v`` (B, H, N, s, ...) mixed by ``p`` (B, H, N, N).

    Args:
        real: (B or 1, N, s) bool, where tokens are, if some may be missing.
        null: of block 0.
    """
    made = [(p.to(t.dtype) @ t.flatten(3)).unflatten(3, t.shape[3:]) for t in (k, v)]
    if null is not None:
        first = torch.arange(p.shape[-1], device=p.device) == 0
        first = first[:, None, None]
        made = [
            torch.where(first, n.to(t.dtype)[:, None], t) for n, t in zip(null, made, strict=True)
        ]
    if real is None:
        return Far(made[0], made[1], None)
    part = p @ real[:, None].to(p.dtype) / nonzero(p.sum(-1, keepdim=True))
    tiny = torch.finfo(p.dtype).tiny
    level = part.clamp(min=tiny).log().masked_fill(part < tiny, -math.inf)
    return Far(made[0], made[1], level)


def own_and_sorted(
    q: Tensor, k: Tensor, v: Tensor, far: Far, real: Tensor, combine: Combine, causal: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Queries of blocks (B, H, N, s, D) over their own and their sorted block: (B, H, N s, D_v)."""
    batch, size = q.shape[0], q.shape[3]
    if causal:
        near = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        past = torch.ones_like(near)
    else:
        assert far.level is not None
        shown = torch.zeros_like(real, dtype=q.dtype).masked_fill(~real, -math.inf)
        past = far.level.to(q.dtype).transpose(1, 2)
        near = shown[:, :, None].expand_as(past).flatten(0, 1)[:, :, None]
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


def first_sorted(q: Tensor, far: Far, count: int, dropout: float) -> Tensor:
    """SortCut: all queries (B, H, L, D) over the first ``count`` sorted blocks: (B, H, L, D_v)."""
    assert far.level is not None
    parts = (far.keys, far.values, far.level)
    keys, values, level = (t[:, :, :count].flatten(2, 3) for t in parts)
    visible = Visibility(mask=level[:, :, None].to(q.dtype))
    return softmax_attention(q, keys, values, visible, dropout=dropout)


def nonzero(sums: Tensor) -> Tensor:
    """Sums to divide by, with one for none."""
    return torch.where(sums == 0, 1, sums)


def pooled_reference(read: Tensor, size: int, causal: bool, mean: bool) -> Tensor:
    """What stands for each block of ``read`` (L, ...): sums or means of its tokens; causal, of all
    up to its first."""
    starts = range(0, len(read), size)
    parts = [read[: n + 1] if causal else read[n : n + size] for n in starts]
    return torch.stack([part.mean(0) if mean else part.sum(0) for part in parts])


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
        asked = q[:, t : t + 1] * scale
        if sortcut is not None:
            parts = [torch.cat([f[n] for f in far[:sortcut]], 1) for n in range(3)]
            y = _softmax(asked, parts[0], parts[2]) @ parts[1]
        else:
            keys, values, level = far[i]
            near = torch.zeros_like(k[:, own, 0])
            if combine == "concat":
                both = (torch.cat(two, 1) for two in ((keys, k[:, own]), (level, near)))
                y = _softmax(asked, *both) @ torch.cat((values, v[:, own]), 1)
            elif combine == "sum-scores":
                more = torch.zeros_like(keys).index_copy(
                    1, torch.arange(last - i * size, device=k.device), k[:, own]
                )
                seen = last - i * size if causal else size
                weights = _softmax(asked, (keys + more)[:, :seen], level[:, :seen])
                y = weights @ values[:, :seen]
            else:
                y = _softmax(asked, keys, level) @ values
                y = y + _softmax(asked, k[:, own], near) @ v[:, own]
        if mixture:
            seen = last if causal else q.shape[1]
            y = y + torch.softmax(asked @ k[:, :seen].mT, -1) @ v[:, :seen]
        outputs.append(y)
    return torch.cat(outputs, 1)


def _softmax(q: Tensor, k: Tensor, level: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT + level[:, None], -1)


def _sorted_literally(
    p: Tensor, k: Tensor, v: Tensor, size: int, i: int, null: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and the log of what is real of each place that is sorted to block i."""
    if null is not None and i == 0:
        keys, values = (n.expand(-1, size, -1) for n in null)
        return keys, values, torch.zeros_like(keys[..., 0])
    places = []
    for r in range(size):
        js = [j for j in range(p.shape[-1]) if j * size + r < k.shape[1]]
        at = [j * size + r for j in js]
        weight = p[:, i, js].to(k.dtype)
        real = weight.sum(-1) / nonzero(p[:, i].sum(-1).to(k.dtype))
        mixed = [(weight[..., None] * t[:, at]).sum(1) for t in (k, v)]
        log = torch.where(real > 0, real.clamp(min=1e-300).log(), -math.inf)
        places.append((*mixed, log))
    keys, values, level = (torch.stack(parts, 1) for parts in zip(*places, strict=True))
    return keys, values, level
