"""Hashed attention by its literal equation, row by row.

    o_i = sum_j N_ij exp(s_ij) v_j / sum_j N_ij exp(s_ij),   s_ij = c q_i . k_j / |k_j|

See `everyformer.genes.mixers.reformer` for the symbols and the source.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.engines.content.chunk_lists import ChunkPattern


def lsh_weights_reference(
    qk: Tensor, buckets: Tensor, pattern: ChunkPattern, *, keep: Tensor | None = None,
    scale: float = 1.0, key_eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """The matrix of weights (B, H, L, L), row by row; arguments as in `lsh_attention`."""
    batch, heads, length, size = qk.shape
    weights = qk.new_zeros(batch, heads, length, length)
    for b in range(batch):
        real = torch.arange(length) if keep is None else keep[b].nonzero().squeeze(1)
        for h in range(heads):
            times = _times_seen(buckets[b, h].tolist(), real.tolist(), length, pattern).to(qk)
            for i in real.tolist():
                key = qk[b, h] / (qk[b, h].square().sum(-1, keepdim=True) + size * key_eps).sqrt()
                score = scale * (key @ qk[b, h, i])
                positions = torch.arange(length, device=qk.device)
                visible = (times[i] > 0) & (positions < i if pattern.causal else positions != i)
                if not visible.any():
                    weights[b, h, i, i] = 1.0
                    continue
                count = (times[i] > 0).to(qk) if pattern.once else times[i]
                top = score[visible].max().detach()
                row = torch.where(visible, count * (score - top).clamp(max=0).exp(), 0)
                weights[b, h, i] = row / row.sum()
    return weights


def _times_seen(buckets: Any, real: list[int], length: int, pattern: ChunkPattern) -> Tensor:
    """N (L, L): how often the list of chunks of one row and head shows key j to query i."""
    chunks = []
    for number, bucket in enumerate(buckets):
        tokens = [t for _, t in sorted((bucket[t], t) for t in real)]
        cuts = range(0, len(tokens), pattern.chunk)
        chunks += [(number, tokens[cut : cut + pattern.chunk]) for cut in cuts]
    times = torch.zeros(length, length)
    for n, (number, asking) in enumerate(chunks):
        for other in range(n - pattern.before, n + pattern.after + 1):
            if pattern.circular:
                other %= len(chunks)
            elif not 0 <= other < len(chunks) or chunks[other][0] != number:
                continue
            for i in asking:
                for j in chunks[other][1]:
                    same = chunks[other][0] == number and buckets[number][i] == buckets[number][j]
                    times[i, j] += 1 if same or not pattern.within else 0
    return times


def lsh_attention_reference(
    qk: Tensor, v: Tensor, buckets: Tensor, pattern: ChunkPattern, *, keep: Tensor | None = None,
    scale: float = 1.0, key_eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """The definition, one query at a time; arguments as in `lsh_attention`."""
    how: dict[str, Any] = {"keep": keep, "scale": scale, "key_eps": key_eps}
    return lsh_weights_reference(qk, buckets, pattern, **how) @ v
