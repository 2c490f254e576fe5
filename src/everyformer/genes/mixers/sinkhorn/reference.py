"""Sparse Sinkhorn attention by its literal equations, one query at a time.

Letters: H heads, N blocks of s tokens, L tokens, D channels of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everyformer.core.errors import ShapeError
from everyformer.genes.mixers.sinkhorn.sorting import Combine, nonzero


def pooled_reference(read: Tensor, size: int, causal: bool, mean: bool) -> Tensor:
    """Sums or means of the tokens of each block of ``read`` (L, ...); causal, of all tokens
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
            elif combine == "sum-scores":
                more = torch.zeros_like(keys).index_copy(
                    1, torch.arange(last - i * size, device=k.device), k[:, own]
                )
                seen = last - i * size if causal else size
                weights = _softmax(query, (keys + more)[:, :seen], level[:, :seen])
                y = weights @ values[:, :seen]
            else:
                y = _softmax(query, keys, level) @ values
                y = y + _softmax(query, k[:, own], near) @ v[:, own]
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
        log = torch.where(real > 0, real.clamp(min=1e-300).log(), -math.inf)
        rows.append((*mixed, log))
    keys, values, level = (torch.stack(parts, 1) for parts in zip(*rows, strict=True))
    return keys, values, level
