"""The picture of how many steps tokens take."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from everyformer.core.panels import Panel, Panels, line_by_line


def halting(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """Steps (B, L) of the first text's tokens, line by line."""
    rows, means = [], []
    for steps in found.values():
        values = steps[0].float().cpu().numpy()
        means.append(f"{values.mean():.1f}")
        rows.append([Panel("", line_by_line(values), ("token", "line"))])
    caption = (
        "How many steps each token takes before it halts, line by line: the darker, the more. On "
        f"average {', '.join(means)}."
    )
    return Panels(rows, caption, "steps", wide=True, text=True)
