"""Pictures of a policy at play: what it reaches, and when it is asked for it, a strip of one of its
episodes, and which steps it reads, of a window or of all that it remembers.

They know returns, pictures and weights alone, so whatever acts can be drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from everyformer.core.panels import Panel, layer_title
from everyformer.core.wording import counted
from everyformer.report.heatmaps import draw_panels
from everyformer.report.style import INK, WIDE, new_figure, styled

FRAMES, ROW = 12, 4
"""pictures of a strip at most, and beside each other"""
PARTS = 20
"""of equal width, in which episodes are counted"""
_REACHED, _CUE = "#0072b2", "#d55e00"


@styled
def draw_returns(played: Sequence[Mapping[str, Any]], best: float | None = None) -> Figure:
    """The mean return that was reached for every one that was asked for, with its interval.

    Args:
        played: ``target``, ``return``, ``return_interval`` (or None) and ``episodes`` of each.
        best: of the data that were learned from, where it is known.
    """
    rows = sorted(played, key=lambda row: row["target"])
    targets, reached = ([row[name] for row in rows] for name in ("target", "return"))
    around = [row["return_interval"] or (row["return"],) * 2 for row in rows]
    errors = [[row["return"] - low, high - row["return"]]
              for row, (low, high) in zip(rows, around, strict=True)]  # fmt: skip
    figure, axes = new_figure()
    ends = (min(targets), max(targets))
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle="--", label="as asked for")
    axes.errorbar(
        targets, reached, yerr=np.transpose(errors), color=_REACHED, marker="o", capsize=2,
        label="reached",
    )  # fmt: skip
    sentence = ""
    if best is not None:
        axes.axvline(best, color=INK, linewidth=0.8, linestyle=":", label="best of the data")
        sentence = f" The best episode of the data has {best:g}."
    axes.set_xlabel("return asked for")
    axes.set_ylabel("mean return reached")
    axes.legend()
    figure.set_label(
        f"Mean returns of {rows[0]['episodes']:,} episodes for each return that was asked for, "
        f"with 95% intervals: from {reached[0]:.4g} for {targets[0]:g} to {reached[-1]:.4g} for "
        f"{targets[-1]:g}.{sentence}"
    )
    return figure


@styled
def draw_spread(
    returns: np.ndarray, played: Mapping[str, Any], best: float | None = None
) -> Figure:
    """A histogram of the returns (N,) of episodes, with their mean and its interval.

    Args:
        played: ``return``, ``return_interval`` (or None), ``episodes``, and ``success`` where it is
            told.
        best: of the data that were learned from, where it is known.
    """
    figure, axes = new_figure()
    axes.hist(returns, bins=PARTS, color=_REACHED, alpha=0.6)
    mean, around = played["return"], played["return_interval"]
    axes.axvline(mean, color=INK, label="mean")
    words = ""
    if around is not None:
        axes.axvspan(*around, color=INK, alpha=0.15, linewidth=0, label="95% interval")
        words = f" ({around[0]:.4g} to {around[1]:.4g})"
    if best is not None:
        axes.axvline(best, color=INK, linewidth=0.8, linestyle=":", label="best of the data")
    axes.set_xlabel("return")
    axes.set_ylabel("episodes")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(loc="outside upper center", ncols=3)
    solved = f" {played['success']:.0%} of them solve the task." if "success" in played else ""
    figure.set_label(
        f"Returns of {played['episodes']:,} episodes, from {returns.min():.4g} to "
        f"{returns.max():.4g}, {mean:.4g}{words} on average.{solved}"
    )
    return figure


@styled
def draw_film(pictures: np.ndarray, rewards: np.ndarray, name: str) -> Figure:
    """A strip of an episode: pictures (T + 1, height, width, 3) in bytes at even distances, the
    first and the last among them, with the return so far.

    Args:
        rewards: (T,), of the steps between them. name: of what is played.
    """
    steps = np.unique(np.linspace(0, len(pictures) - 1, FRAMES).round().astype(int))
    columns = min(ROW, len(steps))
    lines = -(-len(steps) // columns)
    height, width = pictures.shape[1:3]
    side = WIDE / columns
    figure = Figure(figsize=(WIDE, lines * (side * height / width + 0.25)), layout="constrained")
    so_far = np.concatenate(([0.0], np.cumsum(rewards)))
    for axes, step in zip(figure.subplots(lines, columns, squeeze=False).flat, steps, strict=False):
        axes.imshow(pictures[step])
        axes.set_title(f"{step}: {so_far[step]:.4g}", fontsize=8)
    for axes in figure.axes:
        axes.set_axis_off()
    figure.set_label(
        f"An episode of {name}, {len(rewards):,} steps that return {so_far[-1]:.4g}; above each "
        "picture the steps before it and what they returned."
    )
    return figure


def draw_attended(weights: Mapping[str, Tensor], tokens: int, reader: int, first: int) -> Figure:
    """Steps of an episode that are read where an action is chosen: a panel a head.

    Args:
        weights: (heads, L, L) by module path. tokens: of a step.
        reader: which of them the action is read from.
        first: step of the episode at which the window begins.
    """
    steps = {
        path: maps[:, reader::tokens].unflatten(-1, (-1, tokens)).sum(-1).float().cpu().numpy()
        for path, maps in weights.items()
    }
    rows, reach = _read_steps(steps)
    caption = (
        f"Row: a step whose action is chosen; column: a step that is read for it, all its tokens "
        f"together; step 0 is step {first} of the episode. Darker: more weight (square root "
        f"scale). {reach}"
    )
    return draw_panels(rows, caption, "weight")


@styled
def draw_remembered(
    weights: Mapping[str, np.ndarray], begins: Sequence[int], cues: Sequence[int] = ()
) -> Figure:
    """Steps that are read, by memory too, at each of some steps that were played one after the
    other: a panel a head. Lines part the episodes.

    Args:
        weights: (heads, T, T) by module path, a row the step that acts.
        begins: steps at which an episode begins, the first one 0.
        cues: steps at which something is seen that is to be remembered; their columns are marked.
    """
    rows, reach = _read_steps(weights)
    steps = next(iter(weights.values())).shape[-1]
    within = [begin for begin in begins if begin < steps]
    caption = (
        f"Row: a step that acts; column: a step that is read for it, of {steps:,} steps of "
        f"{counted(len(within), 'episode')}, which lines part. Darker: more "
        f"weight (square root scale). {reach}"
    )
    seen = np.isin(np.arange(steps), cues)
    if seen.any():
        later = [_on(maps, seen) for maps in weights.values()]
        caption += (
            " Marked columns: steps that show what is to be remembered; share of the weight of "
            f"later steps that lies on them, layer by layer: {', '.join(later)}."
        )
    figure = draw_panels(rows, caption, "weight")
    ends = [*within[1:], steps]
    for axes in figure.axes[: sum(map(len, rows))]:
        for begin, end in zip(within, ends, strict=True):
            if begin:
                axes.axvline(begin - 0.5, color=INK, linewidth=0.6)
                axes.axhline(begin - 0.5, color=INK, linewidth=0.6)
            for cue in np.flatnonzero(seen[begin:end]) + begin:
                axes.add_patch(
                    Rectangle((cue - 0.5, begin - 0.5), 1, end - begin, fill=False,
                              edgecolor=_CUE, linewidth=0.8)
                )  # fmt: skip
    return figure


def _on(weights: np.ndarray, seen: np.ndarray) -> str:
    """The mean share of the weight (heads, T, T) of steps at which nothing is ``seen`` that lies
    where something is."""
    return f"{np.nan_to_num(weights)[:, ~seen][:, :, seen].sum(-1).mean():.0%}"


def _read_steps(
    weights: Mapping[str, np.ndarray],
) -> tuple[list[list[Panel]], str]:
    """A row of panels a layer of weights (heads, T, T), and how far back they lie in words."""
    rows, reach = [], []
    for path, steps in weights.items():
        count = steps.shape[-1]
        back = np.arange(count)[:, None] - np.arange(count)
        reach.append(float((back * np.nan_to_num(steps)).sum(-1).mean()))
        rows.append([
            Panel(
                layer_title(path, f"head {n + 1}" if len(steps) > 1 else ""),
                np.where(back >= 0, head, np.nan),
                ("step that is read", "step that acts" if n == 0 else ""),
            )
            for n, head in enumerate(steps)
        ])  # fmt: skip
    listed = ", ".join(f"{steps:.1f}" for steps in reach)
    return rows, f"Mean distance read, layer by layer: {listed} steps."
