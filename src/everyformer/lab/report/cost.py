"""Quality against cost: every member a point, and the front of those that none beats in both."""

from collections.abc import Mapping
from typing import Any

from matplotlib.lines import Line2D

from everyformer.core.measures import METRICS
from everyformer.core.wording import join_first
from everyformer.lab.compare.results import Results, finished
from everyformer.lab.report.curves import short
from everyformer.lab.report.headline import decided
from everyformer.lab.report.lines import Lines
from everyformer.lab.report.selection import baseline, crowded
from everyformer.lab.show.style import INK, MANY, Drawing, Styles, label_decades, new_figure, styled

COSTS = ("training", "writing")
"""what is paid: the speed of training, the time that a token takes to write"""


@styled
def draw_cost(results: Results, styles: Styles, what: str) -> Drawing | None:
    """Quality against the speed of training, or against the milliseconds of a written token; a line
    along the front. Where there are many, the front is named and colours are the families'."""
    rows, metric = finished(results), METRICS[results["metric"]]
    context = max((c for row in rows for c in row["decode_ms"]), key=int, default="")
    writes = what == "writing"
    costs = {
        row["member"]: cost
        for row in rows
        if (cost := row["decode_ms"].get(context) if writes else row["tokens_per_second"])
    }
    paid = [row for row in rows if row["member"] in costs]
    if len(paid) < 2:
        return None
    # the smallest of both is the best
    sign, quality = 1 if writes else -1, {row["member"]: row["quality"] for row in paid}
    leading = front({m: (sign * costs[m], metric.sign * quality[m]) for m in quality})
    crowd, base = crowded(results), baseline(results)
    named = [*leading[:MANY], *([base["member"]] if base is not None else [])]
    shown = styles.families if crowd else {}
    figure, axes = new_figure(3.0 + 0.15 * -(-len(shown) // 2))
    lines = Lines(figure, axes, styles)
    for row in paid:
        member, style = row["member"], styles[row["member"]]
        x, y = costs[member], metric.scale * row["quality"]
        gid, known = lines.id_of(member), member in named or not crowd
        look: dict[str, Any] = {"color": style.colour, "marker": style.marker}
        across = row["decode_spread"].get(context) if writes else row["speed_spread"]
        along = row["interval"]
        if not crowd and along is not None:
            axes.plot([x, x], [metric.scale * end for end in along], color=style.colour, lw=0.8)
        if not crowd and across is not None:
            axes.plot(across, [y, y], color=style.colour, lw=0.8)
        axes.plot(x, y, ls="none", gid=gid, zorder=3, markersize=4.5 if known else 4, **look)
        if known:
            lines.named(member, x, y)
    steps = [costs[m] for m in leading], [metric.scale * quality[m] for m in leading]
    axes.plot(*steps, color=INK, linewidth=0.7, alpha=0.6, zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(min(costs.values()) / 1.3, max(costs.values()) * 1.3)
    label_decades(axes.xaxis, short)
    about = f"time per token after {context} (ms, lower is better)"
    axes.set_xlabel(about if writes else "training tokens per second (higher is better)")
    axes.set_ylabel(metric.axis)
    lines.name()
    if shown:
        handles: list[Any] = [
            Line2D([], [], color=colour, marker="o", linestyle="none", label=family)
            for family, colour in shown.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, handletextpad=0.1)
    title = f"Quality against {'time of writing' if writes else 'speed of training'}"
    names = f": {join_first(leading)}" if decided(results) else ""
    bars = "" if crowd else " Bars: 95% intervals and quartiles."
    caption = f"Line: what no other member beats in both, by these numbers{names}.{bars}"
    return Drawing(f"cost-{what}", title, figure, caption)


def front(places: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names that no other beats in one coordinate without losing in the other, the smallest first
    coordinate first; the smallest is the best in both."""
    result: list[str] = []
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        # equals of one on the front are on it too
        if not result or place[1] < places[result[-1]][1] or place == places[result[-1]]:
            result.append(name)
    return result
