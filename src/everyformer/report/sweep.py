"""Loss against lambda for the ways in which a datastore was read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from everyformer.report.style import MANY, Styles, new_figure, save_figure, styled

if TYPE_CHECKING:
    from everyformer.datastores.sweep import Cell, Sweep


@styled
def draw_sweep(sweep: Sweep, path: Path) -> Path:
    """A curve for each k at its best temperature, with the best lambda marked; the best k named.

    Args:
        path: .png, .pdf or .svg; written whole.
    """
    figure, axes = new_figure(3.4)
    best: dict[int, Cell] = {}
    for cell in sweep.tuned:
        best.setdefault(cell.k, cell)
    names = {k: f"k={k:,}, T={cell.temperature:g}" for k, cell in best.items()}
    styles = Styles(names.values(), list(names.values())[:MANY])
    for k, cell in sorted(best.items()):
        curve = [
            (other.weight, other.loss)
            for other in sweep.cells
            if (other.k, other.temperature) == (k, cell.temperature) and other.loss < float("inf")
        ]
        style = styles[names[k]]
        axes.plot(
            *zip(*sorted(curve), strict=True),
            color=style.colour,
            linestyle=style.dashes,
            label=names[k],
        )
        axes.plot(cell.weight, cell.loss, style.marker, color=style.colour)
    axes.axhline(sweep.plain["loss"], color="grey", linestyle=":")
    low, high = sweep.tuned[0].loss, sweep.plain["loss"]
    room = max(high - low, 0.05 * high)
    # what is much worse than the model alone would press all else together
    axes.set(xlim=(-0.03, 1.03), ylim=(low - 0.1 * room, high + 0.5 * room))
    axes.annotate(
        "the model alone", (1, high), (-3, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", fontsize="small",
    )  # fmt: skip
    axes.set(xlabel="lambda (0 leaves the store out)", ylabel="loss (nats a token)")
    axes.legend()
    return save_figure(figure, path)
