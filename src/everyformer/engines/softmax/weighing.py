"""Which engine weighs the values: plain softmax, softmax with slopes, or scores by position."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from everyformer.engines.softmax.attention import attention_weights, sloped, softmax_attention
from everyformer.engines.softmax.places import Places
from everyformer.engines.softmax.scored import How, Scorer, scored_attention, scored_weights
from everyformer.engines.softmax.visibility import Visibility


@dataclass(frozen=True)
class Weighing:
    """Everything about the weights of a mixer that does not depend on the call."""

    scale: float
    softcap: float | None = None
    sink: Tensor | None = None
    """(H,)"""
    scorer: Scorer | None = None
    """the position that acts on scores; None where none does"""
    causal: bool = False

    def heads(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visibility, places: Places | None,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

        Without ``places`` nothing depends on order.
        """
        visible, how = self._settled(q, k, visible, places, dropout)
        if how is None:
            return softmax_attention(
                q, k, v, visible,
                scale=self.scale, dropout=dropout, softcap=self.softcap, sink=self.sink,
            )  # fmt: skip
        how = how.for_sizes(q, k)
        held = how.scorer.prepare(how.places, self.scale, _wide(q.dtype))
        return scored_attention(q, k, v, held, replace(how, dropout=dropout), self.sink)

    def weights(self, q: Tensor, k: Tensor, visible: Visibility, places: Places | None) -> Tensor:
        """The matrix A (B, H, L, S) itself; rows that see nothing are zero."""
        visible, how = self._settled(q, k, visible, places)
        if how is None:
            return attention_weights(
                q, k, visible, scale=self.scale, softcap=self.softcap, sink=self.sink
            )
        how = how.for_sizes(q, k)
        held = how.scorer.prepare(how.places, self.scale, _wide(q.dtype))
        return scored_weights(q, k, held, how, self.sink)

    def _settled(
        self, q: Tensor, k: Tensor, visible: Visibility, places: Places | None, dropout: float = 0.0
    ) -> tuple[Visibility, How | None]:
        """What plain softmax needs, or how scores are made where it does not do."""
        scorer = self.scorer
        if scorer is None or places is None:
            return visible, None
        # indices tell distances, no later key is seen, and no other bias is in the way
        bare = visible.mask is None or visible.mask.dtype == torch.bool
        if self.causal and places.regular and bare:
            slopes = scorer.slopes_of(_wide(q.dtype), q.device)
            if slopes is not None:
                falling = replace(visible, slopes=slopes)
                if q.shape[2] == 1 or sloped(q, k, falling, dropout) != "written":
                    return falling, None
        return visible, How(scorer, places, visible, self.scale, self.softcap)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
