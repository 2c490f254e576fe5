"""The picture of how many steps tokens take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from everyformer.core.panels import Panel, Panels

COLUMNS = 32
"""tokens of a line"""


def halting(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """Steps (B, L) of the first text's tokens, line by line."""
    rows, means = [], []
    for steps in found.values():
        values = steps[0].float().cpu().numpy()
        means.append(f"{values.mean():.1f}")
        columns = min(COLUMNS, len(values))
        lines = np.full((-(-len(values) // columns), columns), np.nan)
        lines.flat[: len(values)] = values
        rows.append([Panel("", lines, ("token", "line"))])
    caption = (
        "How many steps each token takes before it halts, line by line: the darker, the more. On "
        f"average {', '.join(means)}."
    )
    return Panels(rows, caption, "steps", wide=True, text=True)
