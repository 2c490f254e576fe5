"""States of kernel attention: the sums over all tokens seen, or over a context."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from everyformer.core.state import State, state


@state
class KernelState(State):
    """The sums over all tokens seen."""

    num_tokens: Tensor
    sums: Tensor
    """(B, H, M, D_v + 1) of fk v', relative to e^level; v' ends with a one"""
    level: Tensor | None = field(default=None, metadata={"empty": -math.inf})
    """(B, H) log of the largest weight seen; None where keys have neither levels nor gates"""

    @classmethod
    def empty(
        cls, rows: tuple[int, int], features: int, values: int, levels: bool, **like: Any
    ) -> KernelState:
        """The state at the start, for ``rows`` = (batch, heads); ``like``: device and dtype."""
        wide = {**like, "dtype": torch.promote_types(like["dtype"], torch.float32)}
        return cls(
            num_tokens=torch.zeros(rows[0], dtype=torch.long, device=like["device"]),
            sums=torch.zeros(*rows, features, values + 1, **wide),
            level=torch.full(rows, -math.inf, **wide) if levels else None,
        )


@state
class ContextSums(State):
    """The sums over a context, made once and read by every step of cross-attention."""

    of_context = True
    num_tokens: Tensor
    sums: Tensor
    """(B, H, M, D_v + 1)"""
