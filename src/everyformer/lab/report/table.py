"""The table to decide from, best first: what its cells hold, computed once for all that write it.

Each cell may have a second line: intervals, quartiles, ratios.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from everyformer.core.measures import METRICS
from everyformer.lab.bench.points import BASELINE
from everyformer.lab.compare.results import (
    Interval,
    Results,
    TableRow,
    finished,
    reported,
    reported_means,
)
from everyformer.lab.report.headline import decided
from everyformer.lab.report.selection import baseline, crowded
from everyformer.lab.report.words import apart, between, brief, contexts_of, faster_from, interval
from sequence_laws.memory import size

MINUS = "\u2212"
"""as wide as a plus"""


@dataclass(frozen=True)
class Column:
    """A column: what its cells hold and how they are written."""

    title: str
    brief: str
    """the title in a terminal"""
    value: Callable[[TableRow], Any]
    written: Callable[[Any], str] = str
    better: str | None = None
    """'lower' or 'higher', where there is a best"""
    below: Callable[[TableRow], str] = lambda row: ""
    """a second line"""
    spread: Callable[[TableRow], Interval | None] = lambda row: None
    """how sure the value is"""
    tiers: bool = False
    """whether members are told apart by their tiers, not by ``spread``"""
    lacking: Callable[[TableRow], str] = lambda row: "-"
    """what stands in place of an unknown value"""


@dataclass(frozen=True)
class Cell:
    """A cell of a member's row."""

    text: str
    below: str = ""
    best: bool = False
    """whether it may be called the best of its column, with all that cannot be told from it"""
    number: float | None = None
    """by which a table is sorted"""


def cells(results: Results) -> tuple[list[Column], list[tuple[TableRow, list[Cell]]]]:
    """Columns behind the members' names, and each trained member's row."""
    columns, rows = _columns(results), finished(results)
    marked = [best_of(rows, column) if decided(results) else set() for column in columns]
    pairs = [*zip(columns, marked, strict=True)]
    return columns, [(row, [_cell(row, *pair) for pair in pairs]) for row in rows]


def _cell(row: TableRow, column: Column, best: set[str]) -> Cell:
    value = column.value(row)
    if value is None:
        return Cell(column.lacking(row))
    number = value if isinstance(value, int | float) else None
    return Cell(column.written(value), column.below(row), row["member"] in best, number)


def limits(results: Results) -> dict[str, list[str]]:
    """Limits of members, as sentences, each with the members that have it."""
    rows = finished(results)
    every = dict.fromkeys(limit for row in rows for limit in row["limits"])
    return {one: [row["member"] for row in rows if one in row["limits"]] for one in every}


def _columns(results: Results) -> list[Column]:
    metric, rows, base = METRICS[results["metric"]], finished(results), baseline(results)
    contexts, whole = contexts_of(rows), "{:,.0f}".format
    quality = Column(
        f"{metric.unit} ({metric.better} is better)", metric.unit, lambda row: row["quality"],
        metric.written, metric.better, lambda row: interval(row, results["metric"]),
        lambda row: row["interval"], tiers=bool(results["contrasts"]),
    )  # fmt: skip
    tier = Column("tier", "tier", lambda row: " ".join(row["letters"]) or None)
    columns = [tier, quality] if len(rows) > 1 else [quality]
    if crowded(results) and base is not None:
        title = f"difference to {base['member']}"
        columns.append(Column(title, title, lambda row: _difference(row, base, results)))
    if results["config"]["lr_grid"]:
        rate = "learning rate"
        columns.append(Column(rate, rate, lambda row: row.get("lr"), "{:g}".format))
    columns += [
        Column(
            "parameters", "parameters", lambda row: row["parameters"], "{:,}".format, below=_ratio
        ),
        Column(
            "training speed (tokens per second)", "tokens/s in training",
            lambda row: row["tokens_per_second"], whole, "higher",
            lambda row: between(row["speed_spread"], whole), lambda row: row["speed_spread"],
        ),
        Column("memory of training", "memory", lambda row: row["peak_bytes"], size, "lower"),
        Column(
            "seconds to match the last row", "s to match the last row",
            lambda row: row.get("seconds_to_slowest"), brief, "lower",
        ),
    ]  # fmt: skip
    columns += [_decoding(context) for context in contexts]
    for context in contexts:
        held = partial(_held, context=context)
        if any(held(row) for row in rows):
            title = f"memory a stream after {int(context):,} tokens"
            columns.append(Column(title, title.removesuffix(" tokens"), held, size, "lower"))
    for mean in reported_means(rows):
        value = partial(reported, mean=mean)
        columns.append(Column(mean.title, mean.brief, value, "{:.2f}".format))
    if results["bench"]:
        title = f"layer faster than {BASELINE} from (tokens)"
        columns.append(Column(title, title, lambda row: faster_from(row, results)))
    return columns


def _decoding(context: str) -> Column:
    return Column(
        f"writing after {int(context):,} tokens (ms per token)",
        f"ms a token after {int(context):,}",
        lambda row: row["decode_ms"].get(context), brief, "lower",
        lambda row: between(row["decode_spread"].get(context)),
        lambda row: row["decode_spread"].get(context),
        lacking=lambda row: _unable(row, int(context)),
    )  # fmt: skip


def _unable(row: TableRow, context: int) -> str:
    longest = row.get("longest")
    return "-" if longest is None or longest >= context else f"reads at most {longest:,}"


def _held(row: TableRow, context: str) -> int | None:
    return row.get("decode_bytes", {}).get(context)


def _difference(row: TableRow, base: TableRow, results: Results) -> str:
    if row is base:
        return "baseline"
    metric = METRICS[results["metric"]]
    change = row["quality"] - base["quality"]
    # "+0.0%" and "-0.000" say more than they know
    written = metric.written(abs(change))
    if written == metric.written(0.0):
        return written
    return ("+" if change > 0 else MINUS) + written


def _ratio(row: TableRow) -> str:
    ratio = row.get("parameter_ratio")
    return "" if ratio is None or round(ratio, 2) == 1 else f"{ratio:.2f} x the first"


def best_of(rows: list[TableRow], column: Column) -> set[str]:
    """Members with the best value of a column or one that cannot be told from it, when there is a
    choice."""
    known = [row for row in rows if column.value(row) is not None]
    values = [column.value(row) for row in known]
    if column.better is None or len(known) < 2 or min(values) == max(values):
        return set()
    best = known[values.index(min(values) if column.better == "lower" else max(values))]
    same = [
        row
        for row in known
        if row["member"] in best["same_as"] or column.value(row) == column.value(best)
    ]
    surely = column.spread(best) is not None
    near = [row for row in known if surely and not apart(column.spread(best), column.spread(row))]
    if column.tiers:
        near = [row for row in known if set(row["letters"]) & set(best["letters"])]
    result = {row["member"] for row in (*same, *near)}
    return result if len(result) < len(known) else set()
