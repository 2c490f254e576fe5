"""Spans that heads have learned, what follows from them, and pictures of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from everyformer.core.devices import readable
from everyformer.core.panels import Panel, Panels, layer_title
from everyformer.engines.softmax.spans import Reach, faded


class Spans(NamedTuple):
    """Spans of heads: in one call, or in all while weights stay as they are."""

    z: Tensor
    """(1, H, 1) or (B, H, L)"""
    ends: Tensor
    """distances from which on nothing is seen, as ``z``"""
    farthest: list[int]
    """the largest distance that each head sees"""
    fade: Tensor | None
    """log m (B or 1, H, n) of one token's distances, from the farthest to 1; None: of many tokens
    with spans of their own"""
    reach: Reach

    @classmethod
    def of(cls, z: Tensor, reach: Reach, ramp: int) -> Spans:
        """The spans that follow from ``z``, which fades over ``ramp`` keys."""
        ends, farthest = z + ramp, [reach.farthest] * z.shape[1]
        if readable(z):
            farthest = [reach.within(end) for end in ends.detach().amax((0, 2)).tolist()]
        one = z.shape[2] == 1
        fade = faded(ends.detach(), max(farthest), reach.near, ramp) if one else None
        return cls(z, ends, farthest, fade, reach)


def spans(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Spans (H,) of every layer as one matrix; those (H, L) by token a panel for each layer."""
    values = {path: t.float().cpu().numpy() for path, t in recorded.items()}
    mean = float(np.mean([t.mean() for t in values.values()]))
    back = "back" if causal else "to each side"
    caption = (
        f"How many tokens each head looks {back} before nothing is left of its ramp, which is "
        f"included: the darker, the farther. On average {mean:.1f}"
    )
    if all(t.ndim == 1 for t in values.values()) and len({len(t) for t in values.values()}) == 1:
        [*rows] = values.values()
        return Panels([[Panel("", np.stack(rows), ("head", "layer"))]], f"{caption}.", "span")
    panels = [
        [Panel(layer_title(path), np.atleast_2d(t), ("token" if t.ndim > 1 else "head", "head"))]
        for path, t in values.items()
    ]
    return Panels(panels, f"{caption}; by token, in the first text.", "span", wide=True)
