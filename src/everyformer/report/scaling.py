"""Time and memory of one layer against length, with the crossover to plain attention."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from everyformer.benchmark.points import BASELINE, Point, crossover
from everyformer.comparison.results import Results, points
from everyformer.core.wording import MOST_NAMES, few, listed
from everyformer.report.lines import Lines
from everyformer.report.style import Drawing, Styles, label_decades, new_figure, styled
from sequence_laws.memory import size as bytes_in_words


@styled
def draw_scaling(results: Results, styles: Styles, what: str) -> Drawing | None:
    """Time or memory of one layer against length, with the crossover to plain attention."""
    key, factor = {"time": ("seconds", 1000.0), "memory": ("peak_bytes", 1.0)}[what]
    timed = [p for p in points(results) if p.source == "everyformer" and p.work == "pass"]
    measured = {
        member: by_length
        for member in dict.fromkeys(p.member for p in timed)
        if (by_length := {p.length: p for p in timed if p.member == member and getattr(p, key)})
    }
    if not measured:
        return None
    figure, axes = new_figure()
    lengths = sorted({p.length for p in timed})
    _logarithmic(axes, lengths)
    lines = Lines(figure, axes, styles)
    for member, by_length in measured.items():
        lines.curve(member, list(by_length), [factor * getattr(p, key) for p in by_length.values()])
        around = [p.quartiles for p in by_length.values() if p.quartiles is not None]
        if what == "time" and len(around) == len(by_length):
            low, high = ([factor * ends[n] for ends in around] for n in (0, 1))
            lines.band(member, list(by_length), low, high)
    _label_heights(axes, what)
    crossings = []
    for member in measured:
        start = crossover([p for p in timed if getattr(p, key)], member, what=key)
        if start is not None and member != BASELINE:
            crossings.append(f"{member} from {start:,} tokens on")
            if styles[member].named:
                _ring(lines, member, start, factor * getattr(measured[member][start], key))
    lines.name()
    title = "Time per call" if what == "time" else "Memory per call"
    caption = _scaling_caption(measured, crossings, lengths, what)
    return Drawing(what, f"{title} against length", figure, caption + _missing(timed, key))


def _ring(lines: Lines, member: str, start: int, height: float) -> None:
    """A ring around the first point below plain attention's, and a line to the length's tick."""
    colour = lines.styles[member].colour
    vertical: dict[str, Any] = {"color": colour, "linestyle": ":", "linewidth": 1}
    ring: dict[str, Any] = {"color": colour, "markersize": 11, "markerfacecolor": "none"}
    lines.axes.axvline(start, gid=lines.id_of(member), **vertical)
    lines.axes.plot(start, height, "o", gid=lines.id_of(member), **ring)


def _scaling_caption(
    measured: dict[str, Any], crossings: list[str], lengths: list[int], what: str
) -> str:
    verb = "is faster" if what == "time" else "needs less memory"
    if BASELINE not in measured:
        first = "Plain attention has no numbers here, so there is no crossover."
    elif set(measured) == {BASELINE}:
        first = "Plain attention alone was measured."
    elif crossings:
        first = f"Than plain attention {verb}: {few(crossings)} (ringed)."
    else:
        first = f"None surely {verb} than plain attention up to {lengths[-1]:,} tokens."
    return f"{first} One layer, one row, forward and backward" + (
        "; bands: quartiles of repeated calls." if what == "time" else "."
    )


def _missing(points: list[Point], key: str) -> str:
    lost: dict[str, list[str]] = {}
    for point in points:
        if not getattr(point, key):
            known = point.status == "ok"
            why = f"{point.member} ({'too little to see' if known else point.status})"
            lost.setdefault(why, []).append(f"{point.length:,}")
    absent = [f"{why} at {listed(lengths)}" for why, lengths in lost.items()]
    more = [f"{len(absent) - MOST_NAMES} more"] if len(absent) > MOST_NAMES else []
    return f" Not drawn: {'; '.join([*absent[:MOST_NAMES], *more])}." if absent else ""


def _logarithmic(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length (tokens)")


def _label_heights(axes: Axes, what: str) -> None:
    if what == "time":
        axes.set_ylabel("time per call (ms)")
        label_decades(axes.yaxis, lambda value: f"{value:g}")
    else:
        axes.set_ylabel("peak memory per call")
        label_decades(axes.yaxis, lambda value: bytes_in_words(value).replace(".0 ", " "), 4)
