"""The picture of how many steps tokens take."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from everyformer.core.panels import Panel, Panels, layer_title


def halting(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """Steps (B, L) of the first text's tokens."""
    rows, means = [], []
    for path, steps in found.items():
        values = steps[:1].float().cpu().numpy()
        means.append(f"{values.mean():.1f}")
        rows.append([Panel(layer_title(path), values, ("token", ""))])
    caption = (
        "How many steps each token takes before it halts: the darker, the more. On average "
        f"{', '.join(means)}."
    )
    return Panels(rows, caption, "steps", wide=True)
