"""Time and memory of one layer against length, with the crossover to plain attention."""

from typing import Any

from matplotlib.ticker import NullFormatter

from everyformer.core.wording import MOST_NAMES, join_first, join_names
from everyformer.lab.bench.points import BASELINE, Point, crossover
from everyformer.lab.compare.results import Results, points
from everyformer.lab.report.lines import Lines
from everyformer.lab.show.style import Drawing, Styles, label_decades, new_figure, styled
from sequence_laws.memory import size as bytes_in_words


@styled
def draw_scaling(results: Results, styles: Styles, what: str) -> Drawing | None:
    """Time or memory of one layer against length, with the crossover to plain attention."""
    key, factor, of = {
        "time": ("seconds", 1000.0, "time per call"),
        "memory": ("peak_bytes", 1.0, "peak memory per call"),
    }[what]
    timed = [p for p in points(results) if p.source == "everyformer" and p.work == "pass"]
    known = [p for p in timed if getattr(p, key)]
    measured: dict[str, dict[int, Point]] = {}
    for point in known:
        measured.setdefault(point.member, {})[point.length] = point
    if not measured:
        return None
    figure, axes = new_figure()
    lengths = sorted({p.length for p in timed})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="length (tokens)", ylabel=f"{of} (ms)" if what == "time" else of)
    lines, crossings = Lines(figure, axes, styles), []
    for member, by_length in measured.items():
        heights = {length: factor * getattr(p, key) for length, p in by_length.items()}
        lines.curve(member, [*heights], [*heights.values()])
        around = [p.quartiles for p in by_length.values() if p.quartiles is not None]
        if what == "time" and len(around) == len(by_length):
            low, high = ([factor * ends[n] for ends in around] for n in (0, 1))
            lines.band(member, [*heights], low, high)
        start = crossover(known, member, what=key)
        if start is not None and member != BASELINE:
            crossings.append(f"{member} from {start:,} tokens on")
            if styles[member].named:
                _ring(lines, member, start, heights[start])
    if what == "time":
        label_decades(axes.yaxis, lambda value: f"{value:g}")
    else:
        label_decades(axes.yaxis, lambda value: bytes_in_words(value).replace(".0 ", " "), 4)
    lines.name()
    title = "Time per call" if what == "time" else "Memory per call"
    caption = _caption(measured, crossings, lengths, what) + _missing(timed, key)
    return Drawing(what, f"{title} against length", figure, caption)


def _ring(lines: Lines, member: str, start: int, height: float) -> None:
    """A ring around the first point below plain attention's, and a line to the length's tick."""
    look: dict[str, Any] = {"color": lines.styles[member].colour}
    lines.axes.axvline(start, gid=lines.id_of(member), linestyle=":", linewidth=1, **look)
    look |= {"markersize": 11, "markerfacecolor": "none"}
    lines.axes.plot(start, height, "o", gid=lines.id_of(member), **look)


def _caption(measured: dict[str, Any], crossings: list[str], lengths: list[int], what: str) -> str:
    verb = "is faster" if what == "time" else "needs less memory"
    if BASELINE not in measured:
        first = "Plain attention has no numbers here, so there is no crossover."
    elif set(measured) == {BASELINE}:
        first = "Plain attention alone was measured."
    elif crossings:
        first = f"Than plain attention {verb}: {join_first(crossings)} (ringed)."
    else:
        first = f"None surely {verb} than plain attention up to {lengths[-1]:,} tokens."
    bands = "; bands: quartiles of repeated calls" if what == "time" else ""
    return f"{first} One layer, one row, forward and backward{bands}."


def _missing(points: list[Point], key: str) -> str:
    lost: dict[str, list[str]] = {}
    for point in points:
        if not getattr(point, key):
            why = "too little to see" if point.status == "ok" else point.status
            lost.setdefault(f"{point.member} ({why})", []).append(f"{point.length:,}")
    absent = [f"{why} at {join_names(lengths)}" for why, lengths in lost.items()]
    more = [f"{len(absent) - MOST_NAMES} more"] if len(absent) > MOST_NAMES else []
    return f" Not drawn: {'; '.join([*absent[:MOST_NAMES], *more])}." if absent else ""
