"""Hashed attention without parameters.

See `everyformer.genes.mixers.reformer` for the symbols and the source.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.errors import ShapeError
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.engines.content.hashing import bucket_order
from everyformer.engines.content.sorted_chunks import chunked_attention
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility

KEY_EPS = 1e-6
"""added to the mean square of a key before it is divided by its length, as in the authors' code"""
_LAST_BUCKET = 2**31
"""bucket of padding, which sorts after all that hashes give"""


def lsh_attention(
    qk: Tensor, v: Tensor, buckets: Tensor, pattern: ChunkPattern, *,
    padding_mask: Tensor | None = None,
    scale: float = 1.0, key_eps: float = KEY_EPS, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """Attention among the tokens that their buckets bring together: (B, H, L, D_v).

    Args:
        qk: (B, H, L, D), queries, and keys when divided by their lengths.
        v: (B, H, L, D_v).
        buckets: (B, H, rounds, L) integers >= 0, equal where a round hashes alike.
        pattern: chunks and who sees whom in them.
        keep: (B, L) bool, which tokens are real; the others get 0.
        scale: on the scores.
        key_eps: added to the mean square of a key (the authors' code: 1e-6).
        dropout: on the weights.
    """
    if buckets.shape[:2] != qk.shape[:2] or buckets.shape[3:] != qk.shape[2:3]:
        raise ShapeError(
            f"buckets must be (batch, heads, rounds, length) for queries {tuple(qk.shape)}, not "
            f"{tuple(buckets.shape)}"
        )
    rows = sorted_rows(
        qk, v, buckets, pattern, padding_mask=padding_mask, scale=scale, key_eps=key_eps
    )
    y = chunked_attention(
        rows.q, rows.k, rows.v, rows.order, pattern, real=rows.real, dropout=dropout
    )
    y = y.view(v.shape)
    return y if padding_mask is None else y.masked_fill(~padding_mask[:, None, :, None], 0.0)


class SortedRows(NamedTuple):
    """Heads as rows whose length is a multiple of the chunk."""

    q: Tensor
    k: Tensor
    v: Tensor
    order: Tensor
    real: Tensor | None


def sorted_rows(
    qk: Tensor, v: Tensor, buckets: Tensor, pattern: ChunkPattern, *,
    padding_mask: Tensor | None = None,
    scale: float = 1.0, key_eps: float = KEY_EPS,
) -> SortedRows:  # fmt: skip
    """Queries times the scale, keys and values in rows, and the order of their buckets."""
    batch, heads, length, _ = qk.shape
    more = -length % pattern.chunk
    real = None
    # the compiler gets one graph for all lengths
    if torch.compiler.is_compiling() or padding_mask is not None or more:
        flags = torch.ones(batch, length, dtype=torch.bool, device=qk.device)
        rows = torch.arange(batch * heads, device=qk.device) // heads
        real = F.pad(flags if padding_mask is None else padding_mask, (0, more))[rows]
    codes = F.pad(buckets.long().flatten(0, 1), (0, more))
    if real is not None:
        codes = codes.masked_fill(~real[:, None], _LAST_BUCKET)
    keys = keys_of(qk, key_eps)
    q, k, v = (t.flatten(0, 1) for t in (qk * scale, keys, v))
    return SortedRows(q, k, v, bucket_order(codes), real)


def dense_attention(
    qk: Tensor, v: Tensor, pattern: ChunkPattern, *,
    padding_mask: Tensor | None = None, scale: float = 1.0,
    dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """`lsh_attention` of tokens that all lie in one chunk."""
    positions = torch.arange(qk.shape[2], device=qk.device)
    mask = positions[:, None] > positions if pattern.causal else positions[:, None] != positions
    mask = mask[None, None] if padding_mask is None else mask & padding_mask[:, None, None]
    keys = keys_of(qk)
    y = softmax_attention(qk, keys, v, Visibility(mask=mask), scale=scale, dropout=dropout)
    y = torch.where(mask.any(-1, keepdim=True), y, v)
    return y if padding_mask is None else y.masked_fill(~padding_mask[:, None, :, None], 0.0)


def keys_of(qk: Tensor, eps: float = KEY_EPS) -> Tensor:
    """Queries divided by their lengths (squares leave the range of float16)."""
    wide = widened(qk)
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * qk.shape[-1] ** -0.5
    return (wide * scale).to(qk.dtype)


def lsh_weights_reference(
    qk: Tensor, buckets: Tensor, pattern: ChunkPattern, *, padding_mask: Tensor | None = None,
    scale: float = 1.0, key_eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """The matrix of weights (B, H, L, L), row by row; arguments as in `lsh_attention`."""
    batch, heads, length, size = qk.shape
    weights = qk.new_zeros(batch, heads, length, length)
    for b in range(batch):
        real = (
            torch.arange(length) if padding_mask is None else padding_mask[b].nonzero().squeeze(1)
        )
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
                row = count * torch.where(visible, score - top, -torch.inf).exp()
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
    for n, (number, queries) in enumerate(chunks):
        for other in range(n - pattern.before, n + pattern.after + 1):
            if pattern.circular:
                other %= len(chunks)
            elif not 0 <= other < len(chunks) or chunks[other][0] != number:
                continue
            for i in queries:
                for j in chunks[other][1]:
                    times[i, j] += 1
    return times


def lsh_attention_reference(
    qk: Tensor, v: Tensor, buckets: Tensor, pattern: ChunkPattern, *,
    padding_mask: Tensor | None = None,
    scale: float = 1.0, key_eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """The definition, one query at a time; arguments as in `lsh_attention`."""
    how: dict[str, Any] = {"padding_mask": padding_mask, "scale": scale, "key_eps": key_eps}
    return lsh_weights_reference(qk, buckets, pattern, **how) @ v
