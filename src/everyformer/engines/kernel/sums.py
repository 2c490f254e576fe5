"""States of kernel attention: the sums over all tokens seen, or over a context."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor

from everyformer.core.state import State, state


@state
class KernelState(State):
    """The sums over all tokens seen."""

    seen: Tensor
    sums: Tensor
    """(B, H, M, D_v + 1) of fk v', relative to e^level; v' ends with a one"""
    level: Tensor | None = field(default=None, metadata={"empty": -math.inf})
    """(B, H) log of the largest weight seen; None where keys have neither levels nor gates"""
    fade: Tensor | None = None
    """(B, H) log of what the gates of these tokens leave of sums before them, of a part of a text
    (`sum_up`); None: no gates, or nothing comes before"""

    @classmethod
    def empty(
        cls, rows: tuple[int, int], features: int, values: int, levels: bool, **like: Any
    ) -> KernelState:
        """The state at the start, for ``rows`` = (batch, heads); ``like``: device and dtype."""
        wide = {**like, "dtype": torch.promote_types(like["dtype"], torch.float32)}
        return cls(
            seen=torch.zeros(rows[0], dtype=torch.long, device=like["device"]),
            sums=torch.zeros(*rows, features, values + 1, **wide),
            level=torch.full(rows, -math.inf, **wide) if levels else None,
        )

    def followed_by(self, later: KernelState) -> KernelState:
        """S e^{m + f - top} + S' e^{m' - top}, top the larger of m + f and m', f the later fade."""
        if self.level is None or later.level is None:
            return replace(later, sums=self.sums + later.sums)
        before, own = self.level.detach(), later.level.detach()
        before = before if later.fade is None else before + later.fade
        top = torch.maximum(before, own).detach()
        # where no token is real there is no weight at all
        reached = top.clamp(min=torch.finfo(top.dtype).min)
        kept, added = (torch.exp(m - reached)[..., None, None] for m in (before, own))
        fades = None if self.fade is None or later.fade is None else self.fade + later.fade
        return KernelState(later.seen, self.sums * kept + later.sums * added, top, fades)


@state
class ContextSums(State):
    """The sums over a context, made once and read by every step of cross-attention."""

    of_context = True
    seen: Tensor
    sums: Tensor
    """(B, H, M, D_v + 1)"""
