"""Learning curves over seeds: the mean of several trainings of a kind, and how well it is known."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from everyformer.comparison.results import Axis, Curve
from everyformer.core.errors import ConfigError
from everyformer.core.student import mean_interval
from everyformer.report.curves import AXES, Quantity, label_counts
from everyformer.report.lines import Lines
from everyformer.report.style import Styles, new_figure, styled

POINTS = 200
"""at which means are taken, evenly over what all seeds have spent"""


@styled
def draw_seeds(groups: Mapping[str, Sequence[Curve]], drawn: Quantity, axis: Axis) -> Figure:
    """Curves of trainings against what they spent: of every group, by name, the mean over its
    seeds with Student's 95% interval, and thin every seed.

    It is the loss of evaluations, or of training steps where a training was evaluated less than
    twice.

    Raises:
        ConfigError: a training has told nothing yet; those of a group never spent the same.
    """
    every = [curve for curves in groups.values() for curve in curves]
    measured = all(len(curve["evaluations"]) > 1 for curve in every)
    figure, axes = new_figure()
    lines = Lines(figure, axes, Styles(groups))
    ends: dict[str, tuple[float, list[float]]] = {}
    drawn_values: list[float] = []
    for name, curves in groups.items():
        seeds = [_points(curve, drawn, axis, measured, name) for curve in curves]
        if len(seeds) > 1:
            for x, y in seeds:
                lines.faint(name, x.tolist(), y.tolist())
        low, high = max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds)
        if low > high:
            raise ConfigError(
                f"the trainings of {name} never spent the same, so they have no mean: one ends "
                f"after {high:,.6g} and another begins with {low:,.6g}; let them go on"
            )
        at = seeds[0][0] if len(seeds) == 1 else np.linspace(low, high, POINTS)
        values = np.stack([np.interp(at, x, y) for x, y in seeds])
        if len(seeds) > 1:
            around = np.array([mean_interval(each) for each in values.T.tolist()])
            lines.band(name, at.tolist(), *around.T)
        mean = values.mean(0)
        # its name stands at its end, which is marked
        axes.plot(at, mean, color=lines.styles[name].colour)
        lines.curve(name, at[-1:].tolist(), mean[-1:].tolist())
        ends[name] = float(at[-1]), values[:, -1].tolist()
        # the fall from chance in the first steps would press all else to the floor
        early = 0 if measured else len(at) // 8
        drawn_values += values[:, early:].ravel().tolist()
    low, high = min(drawn_values), max(drawn_values)
    room = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(left=0)
    axes.set(xlabel=AXES[axis], ylabel=drawn.label)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    label_counts(axes)
    lines.name()
    what = "evaluations" if measured else "training"
    several = any(len(curves) > 1 for curves in groups.values())
    of_seeds = ": mean over seeds with its 95% interval, and thin every seed" if several else ""
    sentences = [_at_the_end(name, *end, AXES[axis]) for name, end in ends.items()]
    figure.set_label(
        f"{drawn.label.capitalize()} of {what}, against {AXES[axis]}{of_seeds}. "
        f"{'; '.join(sentences)}."
    )
    return figure


def _points(
    curve: Curve, drawn: Quantity, axis: Axis, measured: bool, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Budgets spent, and the values that were logged by then."""
    rows = (
        [(row, row["evaluation"]) for row in curve["evaluations"]]
        if measured
        else [(row, row) for row in curve["training"] if "loss" in row]
    )
    if not rows:
        raise ConfigError(f"a training of {name} has told no loss yet: let it go on")
    x, y = zip(*((row[axis], drawn.of(values)) for row, values in rows), strict=True)
    return np.array(x, float), np.array(y)


def _at_the_end(name: str, spent: float, values: list[float], unit: str) -> str:
    text = f"{name} {np.mean(values):.4g}"
    if len(values) > 1:
        low, high = mean_interval(values)
        text += f" ({low:.4g} to {high:.4g}, {len(values)} seeds)"
    return f"{text} after {spent:,.6g} {unit}"
