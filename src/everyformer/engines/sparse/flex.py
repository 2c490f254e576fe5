"""Plans by torch's FlexAttention, for GPUs.

On a CPU it has no gradients and its uncompiled form makes L x L scores, so that it serves there as
one more check of the masks alone (torch issue 148752).
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from everyformer.engines.sparse.plan import SparsePlan


def able(q: Tensor) -> bool:
    """True where ``flex`` runs at full speed and with gradients."""
    return q.device.type == "cuda" and q.dtype != torch.float64


def flex(
    q: Tensor, k: Tensor, v: Tensor, plan: SparsePlan, lengths: Tensor | None, scale: float
) -> Tensor:
    """Outputs (B, H, L, D) of ``q``, ``k``, ``v`` (B, H, L, D)."""
    batch, heads, length, _ = q.shape
    mask_mod = _visible(plan, lengths)
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(
        mask_mod, None if lengths is None else batch, heads if len(plan.heads) > 1 else None,
        length, length, device=q.device, _compile=q.is_cuda,
    )  # fmt: skip
    attend: Any = _compiled() if q.is_cuda else flex_attention
    o: Tensor = attend(q, k, v, block_mask=blocks, scale=scale)
    return o


def _visible(plan: SparsePlan, lengths: Tensor | None) -> Any:
    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        mask = torch.zeros_like(i, dtype=torch.bool)
        for n, union in enumerate(plan.heads):
            one = torch.zeros_like(mask)
            for pattern in union:
                one = one | pattern.visible(i, j, h)
            mask = mask | (one if len(plan.heads) == 1 else one & (h == n))
        return mask if lengths is None else mask & (j < lengths[b])

    return visible


@lru_cache(maxsize=1)
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)
