"""Errors of a classifier on held-out rows: which classes it takes for which, and how sure it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from everyformer.core.errors import UnsupportedError
from everyformer.core.wording import shortened
from everyformer.lab.show.style import INK, WIDE, styled

NAMED = 30
"""classes up to which each is named"""
COUNTED = 12
"""classes up to which cells hold their counts"""


@dataclass(frozen=True)
class Measured:
    """An evaluation with details (see `everyformer.training.evaluate`)."""

    evaluation: Mapping[str, Any]
    classes: Sequence[str]
    """names, by id"""


@styled
def draw_confusion(measured: Measured) -> Figure:
    """Answers (columns) to the rows of each class (lines), as shares of the line.

    Raises:
        UnsupportedError: there are too many classes for a matrix.
    """
    counts = measured.evaluation.get("confusion")
    if counts is None:
        raise UnsupportedError(
            f"{len(measured.classes):,} classes are too many for a confusion matrix: eval --json "
            "has the measures of each"
        )
    matrix, evaluation = np.array(counts), measured.evaluation
    size, rows = len(matrix), matrix.sum(1, keepdims=True)
    shares = np.divide(matrix, rows, out=np.full(matrix.shape, np.nan), where=rows > 0)
    side = min(max(WIDE, 1.4 + 0.42 * min(size, NAMED)), 12.0)
    figure = Figure(figsize=(side, side * 0.86), layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["Blues"].with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(shares, cmap=colours, vmin=0, vmax=1, interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.set(xlabel="answered", ylabel="true class")
    if size <= NAMED:
        names = [shortened(name, 16) for name in measured.classes]
        turn = 90 if max(map(len, names)) * size > 40 else 0
        axes.set_xticks(range(size), names, rotation=turn)
        axes.set_yticks(range(size), names)
    else:
        axes.locator_params(nbins=8, integer=True)
    if size <= COUNTED:
        for (line, column), count in np.ndenumerate(matrix):
            ink = "white" if shares[line, column] > 0.55 else INK
            axes.text(column, line, f"{count:,}", ha="center", va="center", color=ink, fontsize=8)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    cells = "; cells hold counts" if size <= COUNTED else ""
    figure.set_label(
        f"What was answered to {int(matrix.sum()):,} held-out rows, as shares of each true "
        f"class{cells}. Accuracy {evaluation['accuracy']:.3f} (always training's commonest class: "
        f"{evaluation['majority_accuracy']:.3f}), macro F1 {evaluation['macro_f1']:.3f}."
    )
    return figure


@styled
def draw_calibration(measured: Measured) -> Figure:
    """Accuracy against confidence, and below how many answers were given with it."""
    bins = measured.evaluation["calibration"]
    filled = [row for row in bins if row["rows"]]
    figure = Figure(figsize=(WIDE, WIDE), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 1), (0, 1), color="#808890", linestyle="--", linewidth=1)
    upper.annotate("as sure as right", (0.02, 0.06), rotation=39, fontsize=8, color="#5b6470")
    right = [row["accuracy"] for row in filled]
    upper.plot([row["confidence"] for row in filled], right, color="#0072b2", marker="o")
    upper.set(ylabel="share that is right", xlim=(0, 1.02), ylim=(-0.03, 1.05))
    width = bins[0]["to"] - bins[0]["from"]
    middles = [row["from"] + width / 2 for row in bins]
    lower.bar(middles, [row["rows"] for row in bins], 0.9 * width, color="#56b4e9")
    lower.set(ylabel="rows", xlabel="confidence: probability of the answer")
    error = measured.evaluation["calibration_error"]
    figure.set_label(
        f"How often answers of each confidence are right, in {len(bins)} bins of equal width; "
        f"below the diagonal the model is surer than it is right. Expected calibration error "
        f"{error:.3f} over {sum(row['rows'] for row in bins):,} held-out rows."
    )
    return figure


MEASURED: dict[str, Callable[[Measured], Figure]] = {
    "confusion": draw_confusion,
    "calibration": draw_calibration,
}
"""pictures of an evaluation of runs that classify"""
