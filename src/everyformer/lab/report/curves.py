"""Curves of trainings: loss against what was spent, and against the position in the sequence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from everyformer.core.errors import ConfigError
from everyformer.core.measures import METRICS
from everyformer.core.student import mean_interval
from everyformer.core.wording import join_first
from everyformer.lab.compare.results import (
    Axis,
    CompletedRun,
    Curve,
    Metric,
    Results,
    finished,
    task_of,
)
from everyformer.lab.report.headline import decided
from everyformer.lab.report.lines import Lines
from everyformer.lab.report.words import count
from everyformer.lab.show.style import Drawing, Styles, new_figure, styled

EARLY = 1.25
"""an evaluation that comes later than this share of a point says nothing about it"""
POINTS = 200
"""at which means over seeds are taken, evenly over what all seeds have spent"""
AXES: dict[Axis, str] = {
    "seconds": "training time (seconds)",
    "tokens": "training tokens",
    "flops": "training compute (FLOPs)",
}
Points = tuple[np.ndarray, np.ndarray]
"""budgets spent, and the values by then"""


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
        """The loss in the unit of the table, where that is one of loss.

        Args:
            data: what it was learned from (`Dataset.summary`).
            metric: that trainings on it are ranked by.
        """
        per_token = data["bytes_per_token"]
        if metric.startswith("bits_per_") and per_token:
            return cls(METRICS[metric].unit, 1 / (math.log(2) * per_token))
        if metric == "bits_per_dim":
            return cls(METRICS[metric].unit, 1 / math.log(2))
        return cls(task_of(data).loss_unit, 1.0)

    def evaluated(self, curve: Curve, axis: Axis) -> Points:
        """The losses of evaluations."""
        return self._points([(row[axis], row["evaluation"]) for row in curve["evaluations"]])

    def trained(self, curve: Curve, axis: Axis) -> Points:
        """The losses of training steps."""
        return self._points([(row[axis], row) for row in curve["training"] if "loss" in row])

    def _points(self, rows: Sequence[tuple[float, Any]]) -> Points:
        values = [self.scale * float(values["loss"]) for _, values in rows]
        return np.array([spent for spent, _ in rows], float), np.array(values)


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
        spent, losses = drawn.trained(run, axis)
        lines.faint(run["member"], spent, losses)
        lines.curve(run["member"], *(validation := drawn.evaluated(run, axis)))
        # the fall from chance in the first steps would press all else to the floor
        seen += [*losses[len(losses) // 8 :], *validation[1]]
    _finish(lines, drawn, axis, seen)
    caption = f"{_at_equal(runs, axis, drawn)} Markers: validation; thin lines: training."
    title = f"Loss against {AXES[axis].split(' (')[0]}"
    return Drawing(f"loss-{axis}", title, figure, caption)


def _finish(lines: Lines, drawn: Quantity, axis: Axis, seen: Sequence[float]) -> None:
    """Limits around the values ``seen``, labels, and the names of the curves."""
    axes, low, high = lines.axes, min(seen), max(seen)
    room = 0.06 * (high - low) or 1.0
    axes.set_ylim(max(0.0, low - room) if low >= 0 else low - room, high + room)
    axes.set_xlim(left=0)
    axes.set(xlabel=AXES[axis], ylabel=drawn.label)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if axis != "seconds":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    lines.name()


def _at_equal(runs: list[CompletedRun], axis: Axis, drawn: Quantity) -> str:
    """The order where all have spent the same, by the first seed of each."""
    firsts = {run["member"]: drawn.evaluated(run, axis) for run in reversed(runs)}
    shared = min(spent[-1] for spent, _ in firsts.values())
    reached = sorted(
        (float(np.interp(shared, spent, losses)), member)
        for member, (spent, losses) in firsts.items()
        if spent[0] <= EARLY * shared
    )
    late = len(reached) < len(firsts)
    if late and len(reached) == 1:
        return "No two members were evaluated after spending the same: compare the thin lines."
    amount = {"seconds": f"{shared:.3g} seconds", "tokens": f"{count(shared)} tokens"}
    spent = amount.get(axis, f"{shared:.3g} FLOPs")
    spent += " (first seed)" if len(runs) > len(firsts) else ""
    order = join_first([f"{member} {value:.3f}" for value, member in reached])
    of = "Of the members that were evaluated after" if late else "After"
    return f"{of} {spent}: {order} {drawn.unit}."


@styled
def draw_seeds(groups: Mapping[str, Sequence[Curve]], drawn: Quantity, axis: Axis) -> Figure:
    """Curves of trainings against what they spent: of every group, by name, the mean over its
    seeds with Student's 95% interval, and thin every seed.

    It is the loss of evaluations, or of training steps where a training was evaluated less than
    twice.

    Raises:
        ConfigError: a training has reported nothing yet; those of a group never spent the same.
    """
    measured = all(len(curve["evaluations"]) > 1 for own in groups.values() for curve in own)
    points = drawn.evaluated if measured else drawn.trained
    figure, axes = new_figure()
    lines = Lines(figure, axes, Styles(groups))
    sentences: list[str] = []
    seen: list[float] = []
    for name, curves in groups.items():
        seeds = [points(curve, axis) for curve in curves]
        at, values = _at_the_same(name, seeds)
        mean = values.mean(0)
        sentence = f"{name} {mean[-1]:.4g}"
        if len(seeds) > 1:
            for x, y in seeds:
                lines.faint(name, x, y)
            around = np.array([mean_interval(each) for each in values.T.tolist()])
            lines.band(name, at, *around.T)
            sentence += " ({:.4g} to {:.4g}, {} seeds)".format(*around[-1], len(seeds))
        # its name stands at its end, which is marked
        axes.plot(at, mean, color=lines.styles[name].colour)
        lines.curve(name, at[-1:], mean[-1:])
        sentences.append(f"{sentence} after {at[-1]:,.6g} {AXES[axis]}")
        # the fall from chance in the first steps would press all else to the floor
        seen += values[:, 0 if measured else len(at) // 8 :].ravel().tolist()
    _finish(lines, drawn, axis, seen)
    several = any(len(curves) > 1 for curves in groups.values())
    of_seeds = ": mean over seeds with its 95% interval, and thin every seed" if several else ""
    figure.set_label(
        f"{drawn.label.capitalize()} of {'evaluations' if measured else 'training'}, against "
        f"{AXES[axis]}{of_seeds}. {'; '.join(sentences)}."
    )
    return figure


def _at_the_same(name: str, seeds: Sequence[Points]) -> Points:
    """Budgets that all of ``seeds`` have spent, and the value of each seed there."""
    if not all(len(x) for x, _ in seeds):
        raise ConfigError(f"a training of {name} has reported no loss yet: let it continue")
    low, high = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
    if low > high:
        raise ConfigError(
            f"the trainings of {name} never spent the same, so they have no mean: one ends "
            f"after {high:,.6g} and another begins with {low:,.6g}; let them go on"
        )
    at = seeds[0][0] if len(seeds) == 1 else np.linspace(low, high, POINTS)
    return at, np.stack([np.interp(at, x, y) for x, y in seeds])


@styled
def draw_positions(results: Results, styles: Styles) -> Drawing | None:
    """Validation loss by place in the sequence: what more context gains."""
    order = results["config"]["members"].index
    rows = sorted(finished(results), key=lambda row: order(row["member"]))
    known = [(row["member"], by_start) for row in rows if (by_start := row.get("by_position"))]
    if not known:
        return None
    figure, axes = new_figure()
    lines = Lines(figure, axes, styles)
    drawn = Quantity.of_data(results["data"], results["metric"])
    length, gains = results["data"]["length"], []
    for member, by_start in known:
        starts = [start for start, _ in by_start]
        middles = [(a + b) / 2 for a, b in zip(starts, [*starts[1:], length], strict=True)]
        losses = [drawn.scale * loss for _, loss in by_start]
        lines.curve(member, middles, losses)
        half = len(losses) // 2
        early, late = losses[0], sum(losses[half:]) / len(losses[half:])
        gains.append((early - late, member, early, late))
    axes.set_xlabel("position in the sequence (tokens)")
    axes.set_ylabel(f"validation {drawn.label}")
    axes.set_xlim(0, length)
    lines.name()
    gain, member, early, late = max(gains)
    falls = f"from {early:.3f} at the start to {late:.3f} over the second half of the sequence"
    caption = f"The widest fall with context is {falls}."
    if decided(results):
        caption = f"The loss of {member} falls most with context: {falls}."
    if gain <= 0:
        caption = (
            "No member predicts better late in the sequence than at its start: context does not "
            "help yet."
        )
    return Drawing("positions", "Quality against length of context", figure, caption)


def short(value: float) -> str:
    """Ticks of large counts: 200k, 1.5M, 3e+11."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
