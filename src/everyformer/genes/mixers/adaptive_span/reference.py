"""Adaptive attention span by its literal equation, all pairs written out."""

import math

import torch
from torch import Tensor

from everyformer.engines.softmax.spans import Reach


def soft_weights(
    q: Tensor, k: Tensor, table: Tensor, ends: Tensor, *, reach: Reach, ramp: float,
    padding_mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The matrix A (B, H, L, L).

    Args:
        q, k: (B, H, L, D). table: (columns, D), farthest past first. ends: (B or 1, H, L or 1).
        keep: (B, L) bool.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, table, ends = (t.to(wide) for t in (q, k, table, ends))
    at = torch.arange(q.shape[2], device=q.device)
    x = at[:, None] - at
    far = reach.farthest
    visible = (x <= far) & (x >= (-far if reach.both else 1))
    slope = (ends[..., None] - (x.abs() - reach.near)) / ramp
    # both ends of the ramp have its gradient, which torch's clamp gave them before 2.14
    m = torch.where((slope >= 0) & (slope <= 1), slope, slope.detach().clamp(0, 1)) * visible
    if padding_mask is not None:
        m = m * padding_mask[:, None, None]
    known = table[(far - x).clamp(0, len(table) - 1)]
    scores = (q[:, :, :, None] * (k[:, :, None] + known)).sum(-1) / math.sqrt(q.shape[-1])
    visible_scores = scores.masked_fill(m == 0, -math.inf)
    top = visible_scores.amax(-1, keepdim=True).detach()
    e = (visible_scores - top.masked_fill(top == -math.inf, 0)).exp() * m
    total = e.sum(-1, keepdim=True)
    return e / total.masked_fill(total == 0, 1)
