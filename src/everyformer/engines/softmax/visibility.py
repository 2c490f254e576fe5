"""From the parts of a mask to the one tensor that a softmax call takes, and to none if it can."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.mask import Mask, runs_of
from everyformer.engines.softmax.attention import Visibility


@dataclass(frozen=True)
class Sight:
    """What a mixer lets its queries see, whatever the call."""

    causal: bool
    windows: tuple[int | None, ...] = (None,)
    """keys seen: i-j < W when causal, |i-j| < W when not; None: all; one entry or one a head"""

    @property
    def reach(self) -> int | None:
        """How many past keys a window can still show; None where some head sees all."""
        widths = [w for w in self.windows if w is not None]
        return max(widths) - 1 if len(widths) == len(self.windows) else None

    def of(
        self,
        mask: Mask | None,
        q_positions: Tensor,
        k_positions: Tensor,
        keep: Tensor | None,
        regular: bool,
    ) -> Visibility:
        """Hidden keys of self-attention whose keys end with the queries.

        Args:
            keep: (B, S) bool, which keys are real.
            regular: whether positions of both count up by one.

        Returns:
            No tensor at all where queries see what came before them and themselves.
        """
        plain = mask is None or not {"allowed", "bias", "documents"} & set(mask.parts())
        if plain and keep is None and regular and self.causal and self._shows_all(k_positions):
            return Visibility(causal=True)
        return visibility(
            mask, q_positions, k_positions, causal=self.causal, windows=self.windows, keep=keep
        )

    def _shows_all(self, k_positions: Tensor) -> bool:
        return all(w is None or k_positions.shape[-1] <= w for w in self.windows)


def over_past(mask: Mask | None, length: int, past: int) -> Mask | None:
    """``mask`` whose pairs are of ``length`` keys, for those and ``past`` ones in front of them."""
    if mask is None or past == 0 or (mask.allowed is None and mask.bias is None):
        return mask

    def wide(pairs: Tensor | None, shown: float) -> Tensor | None:
        if pairs is None:
            return None
        pairs = pairs.expand(*pairs.shape[:-1], length) if pairs.dim() else pairs.expand(length)
        return F.pad(pairs, (past, 0), value=shown)

    return replace(mask, allowed=wide(mask.allowed, True), bias=wide(mask.bias, 0.0))


def counts_up(keep: Tensor | None) -> bool:
    """Whether real tokens of every row stand side by side, so that indices tell their distances.

    True tells it for sure; it is asked of the flags themselves only where that costs nothing.
    """
    if keep is None:
        return True
    if not _may_ask(keep):
        return False
    begins = keep[:, 1:] & ~keep[:, :-1]
    return bool((begins.sum(1) + keep[:, 0] <= 1).all())


def surely(flags: Tensor) -> bool:
    """Whether all ``flags`` are True; False where it costs something to know."""
    return _may_ask(flags) and bool(flags.all())


def _may_ask(flags: Tensor) -> bool:
    """Whether reading numbers stops neither a device nor a compiler."""
    return flags.device.type == "cpu" and not torch.compiler.is_compiling()


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
        mask: the caller's mask (its ``keep`` hides no keys: pass their flags as ``keep``).
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
            runs = runs_of(mask.documents, mask.keep)
            same = runs[:, :, None] == runs[:, None, :]
            allowed = _both(allowed, same[:, None])
        if mask.bias is not None:
            bias = mask.bias if bias is None else bias + mask.bias
    if bias is None:
        return Visibility(mask=allowed)
    return Visibility(mask=bias if allowed is None else bias.masked_fill(~allowed, -math.inf))


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
