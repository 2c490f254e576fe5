"""Curves of trainings: loss against what was spent, and against the position in the sequence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from everyformer.comparison.results import Axis, CompletedRun, Metric, Results, finished, task_of
from everyformer.core.measures import METRICS
from everyformer.core.wording import few
from everyformer.report.headline import decided, winners
from everyformer.report.lines import Lines
from everyformer.report.style import Drawing, Styles, new_figure, styled
from everyformer.report.words import count

EARLY = 1.25
"""an evaluation that comes later than this share of a point says nothing about it"""
AXES: dict[Axis, str] = {
    "seconds": "training time (seconds)",
    "tokens": "training tokens",
    "flops": "training compute (FLOPs)",
}


@styled
def draw_loss(results: Results, styles: Styles, axis: Axis) -> Drawing | None:
    """Training (thin) and validation loss (with markers) against what was spent."""
    runs = [run for run in results["runs"] if run["status"] == "done" and run["evaluations"]]
    if not runs:
        return None
    figure, axes = new_figure()
    lines = Lines(figure, axes, styles)
    drawn = Quantity.of_data(results["data"], results["metric"])
    seen: list[float] = []
    for run in runs:
        logged = [row for row in run["training"] if "loss" in row]
        losses = [drawn.of(row) for row in logged]
        lines.faint(run["member"], [row[axis] for row in logged], losses)
        validation = [drawn.of(row["evaluation"]) for row in run["evaluations"]]
        lines.curve(run["member"], [row[axis] for row in run["evaluations"]], validation)
        # the fall from chance in the first steps would press all else to the floor
        seen += [*losses[len(losses) // 8 :], *validation]
    low, high = min(seen), max(seen)
    bottom = low - 0.06 * (high - low)
    axes.set_ylim(max(0.0, bottom) if low >= 0 else bottom, high + 0.06 * (high - low))
    axes.set_xlim(left=0)
    spent = AXES[axis]
    axes.set_xlabel(spent)
    axes.set_ylabel(drawn.label)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if axis != "seconds":
        label_counts(axes)
    lines.name()
    caption = f"{_at_equal(runs, axis, drawn, bool(winners(results)))} Markers: validation; thin "
    caption += "lines: training."
    title = f"Loss against {spent.split(' (')[0]}"
    return Drawing(f"loss-{axis}", title, figure, caption)


@dataclass(frozen=True)
class Quantity:
    """The loss as curves show it."""

    unit: str
    scale: float

    @property
    def label(self) -> str:
        return f"loss ({self.unit})"

    @classmethod
    def of_data(cls, data: Mapping[str, Any], metric: Metric) -> Self:
        """The loss in its unit.

        Args:
            data: what it was learned from (`Dataset.summary`).
            metric: that trainings on it are ranked by.
        """
        scale, unit = _loss_unit(data, metric)
        return cls(unit, scale)

    def of(self, row: Any) -> float:
        """Its value in a row or an evaluation."""
        return self.scale * float(row["loss"])


def label_counts(axes: Axes) -> None:
    """Write large counts along the x axis as 200k, 1.5M, 3e+11."""
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _at_equal(runs: list[CompletedRun], axis: Axis, drawn: Quantity, settled: bool) -> str:
    """The order where all have spent the same, by the first seed of each; who leads if that may
    be said."""
    firsts = {run["member"]: run for run in reversed(runs)}
    shared = min(run["evaluations"][-1][axis] for run in firsts.values())
    results = []
    for member, run in firsts.items():
        spent_by = [row[axis] for row in run["evaluations"]]
        if spent_by[0] <= EARLY * shared:
            losses = [drawn.of(row["evaluation"]) for row in run["evaluations"]]
            results.append((float(np.interp(shared, spent_by, losses)), member))
    results.sort()
    unit = drawn.unit
    late = len(results) < len(firsts)
    amount = {"seconds": f"{shared:.3g} seconds", "tokens": f"{count(shared)} tokens"}
    spent = amount.get(axis, f"{shared:.3g} FLOPs")
    if len(runs) > len(firsts):
        spent += " (first seed)"
    words = [f"{member} {value:.3f}" for value, member in results]
    if len(words) == 1 and late:
        return "No two members were evaluated after spending the same: compare the thin lines."
    if len(words) == 1:
        return f"After {spent}: {words[0]} {unit}."
    order = f"{few(words)} {unit}"
    equal = words[0].split()[-1] == words[1].split()[-1]
    leads = f"{results[0][1]} is lowest ({order})" if settled and not equal else order
    if late:
        return f"Of the members that were evaluated after {spent}: {leads}."
    return f"After {spent}, which all spent: {leads}."


@styled
def draw_positions(results: Results, styles: Styles) -> Drawing | None:
    """Validation loss by place in the sequence: what more context is worth."""
    order = results["config"]["members"].index
    rows = sorted(finished(results), key=lambda row: order(row["member"]))
    known = [(row["member"], by_start) for row in rows if (by_start := row.get("by_position"))]
    if not known:
        return None
    figure, axes = new_figure()
    lines = Lines(figure, axes, styles)
    scale, unit = _loss_unit(results["data"], results["metric"])
    length, gains = results["data"]["length"], []
    for member, by_start in known:
        starts = [start for start, _ in by_start]
        middles = [(a + b) / 2 for a, b in zip(starts, [*starts[1:], length], strict=True)]
        losses = [scale * loss for _, loss in by_start]
        lines.curve(member, middles, losses)
        half = len(losses) // 2
        early, late = losses[0], sum(losses[half:]) / len(losses[half:])
        gains.append((early - late, member, early, late))
    axes.set_xlabel("position in the sequence (tokens)")
    axes.set_ylabel(f"validation loss ({unit})")
    axes.set_xlim(0, length)
    lines.name()
    gain, member, early, late = max(gains)
    falls = f"from {early:.3f} at the start to {late:.3f} over the second half of the sequence"
    if gain <= 0:
        caption = (
            "No member predicts better late in the sequence than at its start: context does not "
            "help yet."
        )
    elif decided(results):
        caption = f"The loss of {member} falls most with context: {falls}."
    else:
        caption = f"The widest fall with context is {falls}."
    return Drawing("positions", "Quality against length of context", figure, caption)


def _loss_unit(data: Mapping[str, Any], metric: Metric) -> tuple[float, str]:
    """From nats to the unit of the table, where it is one of loss."""
    per_token = data["bytes_per_token"]
    if metric.startswith("bits_per_") and per_token:
        return 1 / (math.log(2) * per_token), METRICS[metric].unit
    if metric == "bits_per_dim":
        return 1 / math.log(2), METRICS[metric].unit
    return 1.0, task_of(data).loss_unit


def short(value: float) -> str:
    """Ticks of large counts: 200k, 1.5M, 3e+11."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
