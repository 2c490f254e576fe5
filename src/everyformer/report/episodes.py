"""Pictures of a policy at play: what it reaches when it is asked for it, a strip of one of its
episodes, and which steps of an episode it reads.

They know returns, pictures and weights alone, so whatever acts can be drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.panels import Panel, layer_title
from everyformer.report.heatmaps import draw_panels
from everyformer.report.style import INK, WIDE, new_figure, styled

FRAMES, ROW = 12, 4
"""pictures of a strip at most, and beside each other"""
_REACHED = "#0072b2"


@styled
def draw_returns(played: Sequence[Mapping[str, Any]], best: float | None = None) -> Figure:
    """The mean return that was reached for every one that was asked for, with its interval.

    Args:
        played: ``target``, ``return``, ``return_interval`` (or None) and ``episodes`` of each.
        best: of the data that were learned from, where it is known.
    """
    rows = sorted(played, key=lambda row: row["target"])
    asked, reached = ([row[name] for row in rows] for name in ("target", "return"))
    around = [row["return_interval"] or (row["return"],) * 2 for row in rows]
    errors = [[row["return"] - low, high - row["return"]]
              for row, (low, high) in zip(rows, around, strict=True)]  # fmt: skip
    figure, axes = new_figure()
    ends = (min(asked), max(asked))
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle="--", label="as asked for")
    axes.errorbar(
        asked, reached, yerr=np.transpose(errors), color=_REACHED, marker="o", capsize=2,
        label="reached",
    )  # fmt: skip
    told = ""
    if best is not None:
        axes.axvline(best, color=INK, linewidth=0.8, linestyle=":", label="best of the data")
        told = f" The best episode of the data has {best:g}."
    axes.set_xlabel("return asked for")
    axes.set_ylabel("mean return reached")
    axes.legend()
    figure.set_label(
        f"Mean returns of {rows[0]['episodes']:,} episodes for each return that was asked for, "
        f"with 95% intervals: from {reached[0]:.4g} for {asked[0]:g} to {reached[-1]:.4g} for "
        f"{asked[-1]:g}.{told}"
    )
    return figure


@styled
def draw_film(pictures: np.ndarray, rewards: np.ndarray, name: str) -> Figure:
    """A strip of an episode: pictures (T + 1, height, width, 3) in bytes at even distances, the
    first and the last among them, with the return so far.

    Args:
        rewards: (T,), of the steps between them. name: of what is played.
    """
    shown = np.unique(np.linspace(0, len(pictures) - 1, FRAMES).round().astype(int))
    columns = min(ROW, len(shown))
    lines = -(-len(shown) // columns)
    height, width = pictures.shape[1:3]
    side = WIDE / columns
    figure = Figure(figsize=(WIDE, lines * (side * height / width + 0.25)), layout="constrained")
    so_far = np.concatenate(([0.0], np.cumsum(rewards)))
    for axes, step in zip(figure.subplots(lines, columns, squeeze=False).flat, shown, strict=False):
        axes.imshow(pictures[step])
        axes.set_title(f"{step}: {so_far[step]:.4g}", fontsize=8)
    for axes in figure.axes:
        axes.set_axis_off()
    figure.set_label(
        f"An episode of {name}, {len(rewards):,} steps that return {so_far[-1]:.4g}; above each "
        "picture the steps before it and what they returned."
    )
    return figure


def draw_attended(
    weights: Mapping[str, Tensor], tokens: int, reader: int, first: int, most: int | None = None
) -> Figure:
    """Which steps of an episode are read where an action is chosen: a panel a head.

    Args:
        weights: (heads, L, L) by module path. tokens: of a step.
        reader: which of them the action is read from.
        first: step of the episode at which the window begins.
        most: at most so many layers and heads (default: all).
    """
    rows, reach = [], []
    for path, maps in list(weights.items())[:most]:
        steps = maps[:, reader::tokens].unflatten(-1, (-1, tokens)).sum(-1)
        count = steps.shape[-1]
        past = np.tril(np.ones((count, count), bool))
        back = (np.arange(count)[:, None] - np.arange(count)) * steps.float().cpu().numpy()
        reach.append(float(back.sum(-1).mean()))
        rows.append([
            Panel(
                layer_title(path, f"head {n + 1}" if len(steps) > 1 else ""),
                np.where(past, head.float().cpu().numpy(), np.nan),
                ("step that is read", "step that acts" if n == 0 else ""),
            )
            for n, head in enumerate(steps[:most])
        ])  # fmt: skip
    listed = ", ".join(f"{steps:.1f}" for steps in reach)
    caption = (
        f"Row: a step whose action is chosen; column: a step that is read for it, all its tokens "
        f"together; step 0 is step {first} of the episode. Darker: more weight (square root "
        f"scale). Mean distance read, layer by layer: {listed} steps."
    )
    return draw_panels(rows, caption, "weight")
