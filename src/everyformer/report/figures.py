"""The figures of a comparison, drawn from its results alone; each caption states the finding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from everyformer.benchmark.points import BASELINE, Point, crossover
from everyformer.comparison.results import Axis, CompletedRun, Results, finished, points
from everyformer.core.memory import size as bytes_in_words
from everyformer.core.tasks import TASKS
from everyformer.report.style import Styles, name_members, new_figure, ranked_figure, styled
from everyformer.report.words import UNITS, brief, count, interval, listed, overlap, quality

NARROW = 12
"""times the smallest value: a log axis that reaches no further gets more labels"""
EARLY = 1.25
"""an evaluation that comes later than this share of a point says nothing about it"""
_AXES: dict[Axis, str] = {
    "seconds": "training time (seconds)",
    "tokens": "training tokens",
    "flops": "training compute (FLOPs)",
}


@dataclass(frozen=True)
class Drawing:
    """A figure with what it shows."""

    name: str
    """of its file"""
    title: str
    figure: Figure
    caption: str


def draw_all(results: Results) -> list[Drawing]:
    """Every figure that the results have numbers for."""
    styles = Styles(results["config"]["members"])
    drawings: list[Drawing | None] = [draw_quality(results, styles)]
    drawings += [draw_loss(results, styles, axis) for axis in _AXES]
    drawings.append(draw_positions(results, styles))
    drawings += [draw_scaling(results, styles, what) for what in ("time", "memory")]
    drawings.append(draw_decoding(results, styles))
    return [drawing for drawing in drawings if drawing is not None]


@styled
def draw_quality(results: Results, styles: Styles) -> Drawing | None:
    """The ranking with its 95% intervals, best on top."""
    rows, metric = finished(results), results["metric"]
    if not rows:
        return None
    figure, axes = ranked_figure([row["member"] for row in rows], 1.1)
    scale = 100 if metric == "accuracy" else 1
    for line, row in enumerate(rows):
        style, value = styles[row["member"]], scale * row["quality"]
        low, high = (scale * bound for bound in row["interval"] or [row["quality"]] * 2)
        reach = [[value - low], [high - value]]
        axes.errorbar(value, line, xerr=reach, capsize=4, markersize=6, **style.line)
        if len(row["values"]) > 1:
            every = [scale * one for one in row["values"]]
            at = [line + 0.22] * len(every)
            axes.plot(every, at, "|", color=style.colour, alpha=0.7, markersize=5)
    unit = "accuracy (%" if metric == "accuracy" else f"{UNITS[metric]} ("
    axes.set_xlabel(f"{unit}{', ' if scale > 1 else ''}{results['better']} is better)")
    best, of = rows[0], rows[0]["interval_of"]
    caption = (
        f"{best['member']} is first with {quality(best['quality'], metric)} "
        f"({interval(best, metric)}). "
    )
    near = [row["member"] for row in rows[1:] if overlap(best, row)]
    if near:
        caption += f"Its interval overlaps with that of {listed(near)}. "
    elif rows[1:]:
        caption += "No other interval reaches its own. "
    caption += f"Bars: 95% intervals over {of}"
    caption += "; ticks: single seeds." if of == "seeds" else "."
    return Drawing("quality", "Quality", figure, caption)


@styled
def draw_loss(results: Results, styles: Styles, axis: Axis) -> Drawing | None:
    """Training (thin) and validation loss (with markers) against what was spent."""
    runs = [run for run in results["runs"] if run["status"] == "done" and run["evaluations"]]
    if not runs:
        return None
    figure, axes = new_figure()
    scale, unit = _loss_unit(results)
    named: set[str] = set()
    seen: list[float] = []
    for run in runs:
        style, member = styles[run["member"]], run["member"]
        spent = [row[axis] for row in run["training"]]
        losses = [scale * row["loss"] for row in run["training"]]
        axes.plot(spent, losses, color=style.colour, linewidth=0.8, alpha=0.45)
        validation = [scale * row["evaluation"]["loss"] for row in run["evaluations"]]
        reached = [row[axis] for row in run["evaluations"]]
        label = None if member in named else member
        axes.plot(reached, validation, label=label, **style.line)
        named.add(member)
        # the fall from chance in the first steps would press all else to the floor
        seen += [*losses[len(losses) // 8 :], *validation]
    low, high = min(seen), max(seen)
    axes.set_ylim(max(0.0, low - 0.06 * (high - low)), high + 0.06 * (high - low))
    axes.set_xlim(left=0)
    axes.set_xlabel(_AXES[axis])
    axes.set_ylabel(f"loss ({unit})")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    if axis != "seconds":
        axes.xaxis.set_major_formatter(_short)
    name_members(figure, axes)
    caption = f"{_at_equal(runs, axis, scale, unit)} Markers: validation; thin lines: training."
    return Drawing(f"loss-{axis}", f"Loss against {_AXES[axis].split(' (')[0]}", figure, caption)


def _at_equal(runs: list[CompletedRun], axis: Axis, scale: float, unit: str) -> str:
    """Who leads where all have spent the same, by the first seed of each."""
    firsts = {run["member"]: run for run in reversed(runs)}
    shared = min(run["evaluations"][-1][axis] for run in firsts.values())
    found = []
    for member, run in firsts.items():
        spent_by = [row[axis] for row in run["evaluations"]]
        if spent_by[0] <= EARLY * shared:
            losses = [scale * row["evaluation"]["loss"] for row in run["evaluations"]]
            found.append((float(np.interp(shared, spent_by, losses)), member))
    found.sort()
    late = len(found) < len(firsts)
    amount = {"seconds": f"{shared:.3g} seconds", "tokens": f"{count(shared)} tokens"}
    spent = amount.get(axis, f"{shared:.3g} FLOPs")
    if len(runs) > len(firsts):
        spent += " (first seed)"
    words = [f"{member} {value:.3f}" for value, member in found]
    if len(words) == 1 and late:
        return "No two members were evaluated after spending the same: compare the thin lines."
    if len(words) == 1:
        return f"After {spent}: {words[0]} {unit}."
    lowest = f"{found[0][1]} is lowest ({', '.join(words)} {unit})"
    if late:
        return f"Of the members that were evaluated after {spent}, {lowest}."
    return f"After {spent}, which all spent, {lowest}."


@styled
def draw_positions(results: Results, styles: Styles) -> Drawing | None:
    """Validation loss by place in the sequence: what more context is worth."""
    order = results["config"]["members"].index
    rows = sorted(finished(results), key=lambda row: order(row["member"]))
    known = [(row["member"], by_start) for row in rows if (by_start := row.get("by_position"))]
    if not known:
        return None
    figure, axes = new_figure()
    scale, unit = _loss_unit(results)
    length, gains = results["data"]["length"], []
    for member, by_start in known:
        starts = [start for start, _ in by_start]
        middles = [(a + b) / 2 for a, b in zip(starts, [*starts[1:], length], strict=True)]
        losses = [scale * loss for _, loss in by_start]
        axes.plot(middles, losses, label=member, **styles[member].line)
        half = len(losses) // 2
        early, late = losses[0], sum(losses[half:]) / len(losses[half:])
        gains.append((early - late, member, early, late))
    axes.set_xlabel("position in the sequence (tokens)")
    axes.set_ylabel(f"validation loss ({unit})")
    axes.set_xlim(0, length)
    name_members(figure, axes)
    gain, member, early, late = max(gains)
    caption = (
        f"{member} gains most from context: {early:.3f} at the start, {late:.3f} over the second "
        "half of the sequence."
        if gain > 0
        else "No member predicts better late in the sequence than at its start: context does not "
        "help yet."
    )
    return Drawing("positions", "Quality against length of context", figure, caption)


@styled
def draw_scaling(results: Results, styles: Styles, what: str) -> Drawing | None:
    """Time or memory of one layer against length, with the crossover to plain attention."""
    key, factor = {"time": ("seconds", 1000.0), "memory": ("peak_bytes", 1.0)}[what]
    timed = [p for p in points(results) if p.source == "everyformer" and p.work == "pass"]
    measured = {
        member: kept
        for member in dict.fromkeys(p.member for p in timed)
        if (kept := {p.length: p for p in timed if p.member == member and getattr(p, key)})
    }
    if not measured:
        return None
    figure, axes = new_figure()
    for member, kept in measured.items():
        style = styles[member]
        values = [factor * getattr(p, key) for p in kept.values()]
        axes.plot(list(kept), values, label=member, **style.line)
        if what == "time":
            around = [p.quartiles for p in kept.values() if p.quartiles is not None]
            low, high = ([factor * ends[n] for ends in around] for n in (0, 1))
            axes.fill_between(list(kept), low, high, color=style.colour, alpha=0.2, linewidth=0)
    lengths = sorted({p.length for p in timed})
    _logarithmic(axes, lengths, what)
    crossings = []
    for member in measured:
        start = crossover([p for p in timed if getattr(p, key)], member, what=key)
        if start is not None and member != BASELINE:
            crossings.append(f"{member} from {start:,} tokens on")
            axes.axvline(start, color=styles[member].colour, linestyle=":", linewidth=1)
            height = factor * getattr(measured[member][start], key)
            ring: dict[str, Any] = {"markersize": 11, "markerfacecolor": "none"}
            axes.plot(start, height, "o", color=styles[member].colour, **ring)
    name_members(figure, axes)
    title = "Time per call" if what == "time" else "Memory per call"
    caption = _scaling_caption(measured, crossings, lengths, what)
    return Drawing(what, f"{title} against length", figure, caption + _missing(timed, key))


def _scaling_caption(
    measured: dict[str, Any], crossings: list[str], lengths: list[int], what: str
) -> str:
    verb = "is faster" if what == "time" else "needs less memory"
    if BASELINE not in measured:
        first = "Plain attention has no numbers here, so there is no crossover."
    elif set(measured) == {BASELINE}:
        first = "Plain attention alone was measured."
    elif crossings:
        first = f"Than plain attention {verb}: {listed(crossings)} (ringed)."
    else:
        first = f"None {verb} than plain attention up to {lengths[-1]:,} tokens."
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
    return f" Not drawn: {'; '.join(absent)}." if absent else ""


@styled
def draw_decoding(results: Results, styles: Styles) -> Drawing | None:
    """Milliseconds a token after a short and after a long context."""
    rows = [row for row in finished(results) if row["decode_ms"]]
    if not rows:
        return None
    contexts = sorted({c for row in rows for c in row["decode_ms"]}, key=int)
    short, long = contexts[0], contexts[-1]
    rows.sort(key=lambda row: row["decode_ms"].get(long, math.inf))
    figure, axes = ranked_figure([row["member"] for row in rows], 1.3)
    for line, row in enumerate(rows):
        style, spent = styles[row["member"]], row["decode_ms"]
        ends = [spent[c] for c in (short, long) if c in spent]
        axes.plot(ends, [line] * len(ends), color=style.colour, linewidth=1)
        for context, face in ((short, "none"), (long, style.colour)):
            if context in spent:
                axes.plot(spent[context], line, "o", color=style.colour, markerfacecolor=face)
    for context, face in ((short, "none"), (long, "#808890")):
        axes.plot([], [], "o", color="#808890", markerfacecolor=face, label=f"after {context}")
    axes.set_xscale("log")
    values = [value for row in rows for value in row["decode_ms"].values()]
    axes.set_xlim(min(values) / 1.4, max(values) * 1.4)
    _label_decades(axes.xaxis, lambda value: f"{value:g}")
    axes.set_xlabel("time per token (ms, lower is better)")
    figure.legend(loc="outside upper right", ncols=2)
    best, worst = rows[0], rows[-1]
    needed = brief(best["decode_ms"][long])
    caption = f"After {int(long):,} tokens {best['member']} needs {needed} ms per token"
    if worst is not best and long in worst["decode_ms"]:
        caption += f", {worst['member']} {brief(worst['decode_ms'][long])} ms"
    grown = {r["member"]: r["decode_ms"].get(long, 0) / r["decode_ms"][short] for r in rows}
    member, ratio = max(grown.items(), key=lambda item: item[1])
    caption += f". From {int(short):,} tokens on it grows most in {member}: {brief(ratio)}x."
    return Drawing("decoding", "Decoding", figure, caption)


def _logarithmic(axes: Axes, lengths: list[int], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length (tokens)")
    if what == "time":
        axes.set_ylabel("time per call (ms)")
        _label_decades(axes.yaxis, lambda value: f"{value:g}")
    else:
        axes.set_ylabel("peak memory per call")
        _label_decades(axes.yaxis, lambda value: bytes_in_words(value).replace(".0 ", " "), 4)


def _label_decades(axis: Any, words: Any, base: int = 10) -> None:
    """Labels at 1, 2 and 5 of every decade, or closer; at the powers of another base."""
    low, high = axis.get_view_interval()
    few = (1.0, 2.0, 5.0) if high / low > NARROW else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(base, subs=few if base == 10 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axis.set_minor_formatter(NullFormatter())


def _loss_unit(results: Results) -> tuple[float, str]:
    """From nats to the unit of the table, where it is one of loss."""
    metric, per_token = results["metric"], results["data"]["bytes_per_token"]
    if metric == "bits_per_byte" and per_token:
        return 1 / (math.log(2) * per_token), UNITS[metric]
    if metric == "bits_per_dim":
        return 1 / math.log(2), UNITS[metric]
    per = "example" if TASKS[results["data"]["task"]].classifies else "token"
    return 1.0, f"nats per {per}"


def _short(value: float, _: float) -> str:
    """Ticks of large counts: 200k, 1.5M, 3e+11."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
