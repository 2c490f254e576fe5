"""The figures of a comparison, drawn from its results alone; captions say what tables do not."""

import math
from typing import Any

from matplotlib.ticker import MaxNLocator

from everyformer.core.measures import METRICS
from everyformer.lab.compare.results import Results, finished
from everyformer.lab.report.cost import COSTS, draw_cost
from everyformer.lab.report.curves import AXES, draw_loss, draw_positions
from everyformer.lab.report.scaling import draw_scaling
from everyformer.lab.report.selection import styles_of
from everyformer.lab.report.words import brief
from everyformer.lab.show.style import Drawing, Styles, label_decades, ranked_figure, styled

FIGURES = (
    "quality",
    *(f"cost-{what}" for what in COSTS),
    *(f"loss-{axis}" for axis in AXES),
    "positions",
    "time",
    "memory",
    "decoding",
)
"""names of all that `draw_all` may draw"""


def draw_all(results: Results, *, complete: bool = True) -> list[Drawing]:
    """Every figure that the results have numbers for.

    Args:
        complete: False draws quality and loss alone, while members are still trained.
    """
    styles = styles_of(results)
    drawings: list[Drawing | None] = [draw_quality(results, styles)]
    if complete:
        drawings += [draw_cost(results, styles, what) for what in COSTS]
    drawings += [draw_loss(results, styles, axis) for axis in AXES]
    if complete:
        drawings.append(draw_positions(results, styles))
        drawings += [draw_scaling(results, styles, what) for what in ("time", "memory")]
        drawings.append(draw_decoding(results, styles))
    return [drawing for drawing in drawings if drawing is not None]


@styled
def draw_quality(results: Results, styles: Styles) -> Drawing | None:
    """The ranking with its 95% intervals, best on top."""
    rows, metric = finished(results), METRICS[results["metric"]]
    if not rows:
        return None
    figure, axes = ranked_figure([row["member"] for row in rows], 1.1)
    for line, row in enumerate(rows):
        style, value = styles[row["member"]], metric.scale * row["quality"]
        low, high = (metric.scale * bound for bound in row["interval"] or [row["quality"]] * 2)
        reach = [[value - low], [high - value]]
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker}
        size = 5 if style.named else 3
        axes.errorbar(value, line, xerr=reach, capsize=size / 1.5, markersize=size, **look)
        if len(row["values"]) > 1:
            every = [metric.scale * one for one in row["values"]]
            at = [line + 0.22] * len(every)
            axes.plot(every, at, "|", color=style.colour, alpha=0.7, markersize=5)
    # beside long names there is room for few numbers of five or six digits
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(metric.axis)
    of = rows[0]["interval_of"]
    ticks = "; ticks: single seeds" if of == "seeds" else ""
    caption = f"In the order of the table. Bars: 95% intervals over {of}{ticks}."
    return Drawing("quality", "Quality", figure, caption)


@styled
def draw_decoding(results: Results, styles: Styles) -> Drawing | None:
    """Milliseconds a token after a short and after a long context, with quartiles."""
    rows = [row for row in finished(results) if row["decode_ms"]]
    if not rows:
        return None
    contexts = sorted({c for row in rows for c in row["decode_ms"]}, key=int)
    short, long = contexts[0], contexts[-1]
    rows.sort(key=lambda row: row["decode_ms"].get(long, math.inf))
    figure, axes = ranked_figure([row["member"] for row in rows], 1.3)
    band: dict[str, Any] = {"alpha": 0.3, "solid_capstyle": "butt"}
    for line, row in enumerate(rows):
        style, spent = styles[row["member"]], row["decode_ms"]
        size, colour = 4.5 if style.named else 3, style.colour
        ends = [spent[c] for c in (short, long) if c in spent]
        axes.plot(ends, [line] * len(ends), color=colour, linewidth=1)
        for context, face in ((short, "none"), (long, colour)):
            if around := row["decode_spread"].get(context):
                axes.plot(around, [line, line], color=colour, linewidth=size, **band)
            if context in spent:
                at = spent[context]
                axes.plot(at, line, "o", color=colour, markersize=size, markerfacecolor=face)
    for context, face in ((short, "none"), (long, "#808890")):
        axes.plot([], [], "o", color="#808890", markerfacecolor=face, label=f"after {context}")
    axes.set_xscale("log")
    values = [value for row in rows for value in row["decode_ms"].values()]
    axes.set_xlim(min(values) / 1.4, max(values) * 1.4)
    label_decades(axes.xaxis, lambda value: f"{value:g}")
    axes.set_xlabel("time per token (ms, lower is better)")
    figure.legend(loc="outside upper right", ncols=2)
    caption = f"After {int(short):,} tokens (open) and after {int(long):,}."
    grown = {
        row["member"]: row["decode_ms"][long] / row["decode_ms"][short]
        for row in rows
        if {short, long} <= row["decode_ms"].keys()
    }
    member, ratio = max(grown.items(), key=lambda item: item[1], default=("", 0.0))
    if ratio > 1:
        caption += f" It grows by the largest factor in {member}: {brief(ratio)}."
    if any(row["decode_spread"] for row in rows):
        caption += " Bands: quartiles."
    return Drawing("decoding", "Decoding", figure, caption)
