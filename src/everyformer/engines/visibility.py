"""From the parts of a mask to the one tensor that a softmax call takes, and to none if it can."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.engines.softmax import Visibility


def visibility(
    mask: Mask | None,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    causal: bool,
    windows: tuple[int | None, ...] = (None,),
    keep: Tensor | None = None,
    bias: Tensor | None = None,
) -> Visibility:
    """Combine everything that hides keys from queries.

    Args:
        mask: the caller's mask (its ``keep`` is not read: pass the keys' flags as ``keep``).
        q_positions, k_positions: (B or 1, L), (B or 1, S) absolute positions.
        causal: keys later than the query are hidden.
        windows: one entry for all heads or one a head: W shows distances 0 <= i-j < W when causal,
            |i-j| < W when not; None shows all.
        keep: (B, S) bool, which keys are real.
        bias: float scores to add, broadcastable to (B, H, L, S).
    """
    allowed: Tensor | None = None
    if causal:
        allowed = (k_positions[:, None, :] <= q_positions[:, :, None])[:, None]
    if any(w is not None for w in windows):
        distance = (q_positions[:, :, None] - k_positions[:, None, :]).abs()[:, None]
        widths = [math.inf if w is None else w for w in windows]
        limit = torch.tensor(widths, device=distance.device).view(1, -1, 1, 1)
        allowed = _both(allowed, distance < limit)
    if keep is not None:
        allowed = _both(allowed, keep[:, None, None, :])
    if mask is not None:
        if mask.allowed is not None:
            allowed = _both(allowed, mask.allowed)
        if mask.documents is not None:
            same = mask.documents[:, :, None] == mask.documents[:, None, :]
            allowed = _both(allowed, same[:, None])
        if mask.bias is not None:
            bias = mask.bias if bias is None else bias + mask.bias
    if bias is None:
        return Visibility(mask=allowed)
    return Visibility(mask=bias if allowed is None else bias.masked_fill(~allowed, -math.inf))


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
