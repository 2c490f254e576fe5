"""Loss against the length of the window, the place in it and the context before a target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer.lab.show.style import new_figure, save_figure, styled


@styled
def draw_lengths(evaluations: Sequence[dict[str, Any]], trained: int | None, path: Path) -> Path:
    """A picture of the loss against the length of the window, with 95% intervals.

    Args:
        evaluations: with ``window``, ``loss`` and ``loss_interval``, in nats a token.
        trained: tokens of a training window, where known.
        path: .png, .svg or .pdf; written whole.
    """
    figure, axes = new_figure()
    windows = [one["window"] for one in evaluations]
    losses = [one["loss"] for one in evaluations]
    axes.plot(windows, losses, marker="o")
    spans = [one.get("loss_interval") or (one["loss"], one["loss"]) for one in evaluations]
    axes.fill_between(windows, [low for low, _ in spans], [high for _, high in spans], alpha=0.2)
    if trained is not None:
        axes.axvline(trained, color="grey", linestyle=":")
        place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        about = f"trained on {trained}"
        axes.annotate(about, (trained, 1), (3, -3), va="top", fontsize="small", **place)
    _counts(axes, windows)
    axes.set(xlabel="tokens in a window", ylabel="loss (nats a token)")
    return save_figure(figure, path)


@styled
def draw_positions(evaluation: dict[str, Any], path: Path) -> Path:
    """Loss by place in the segment, and by how many tokens were read before, as a picture.

    ``evaluation``: what `evaluate_long` gives.
    """
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    positions, contexts = evaluation["by_place"], evaluation["by_context"]
    middles = [(one["from"] + one["to"]) / 2 for one in positions]
    left.plot(middles, [one["loss"] for one in positions], marker="o", markersize=3)
    left.set(xlabel=f"place in a segment of {evaluation['window']:,}", ylabel="loss (nats a token)")
    starts = [one["from"] for one in contexts]
    right.plot(starts, [one["loss"] for one in contexts], marker="o")
    _counts(right, starts[:: -(-len(starts) // 6)])
    right.set(xlabel="tokens read before, from")
    return save_figure(figure, path)


def _counts(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{count:,}" for count in ticks])
    axes.minorticks_off()
