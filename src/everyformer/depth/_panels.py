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


def exits(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """Layers (B, L) at which the first text's tokens leave, line by line."""
    rows, means = [], []
    for layers in found.values():
        values = layers[0].float().cpu().numpy()
        means.append(f"{values.mean():.1f}")
        rows.append([Panel("", line_by_line(values), ("token", "line"))])
    caption = (
        "At which layer each token leaves, line by line: the darker, the deeper. On average "
        f"{', '.join(means)}."
    )
    return Panels(rows, caption, "layer", wide=True, text=True)


def confidence(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """How sure (n, B, L) each layer that is asked was of the first text's tokens, or NaN."""
    rows = []
    for sure in found.values():
        values = sure[:, 0].float().cpu().numpy()
        rows.append([Panel("", values, ("token", "layer that is asked"))])
    caption = (
        "How sure each layer is of what comes next, for every token that has come there; blank "
        "where it has left before."
    )
    return Panels(rows, caption, "confidence", wide=True)
