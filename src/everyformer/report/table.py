"""The table to decide from, best first: what its cells hold, and as HTML.

Each cell may have a second line: intervals, quartiles, ratios. What members cannot stands below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import (
    Interval,
    Results,
    TableRow,
    finished,
    reported,
    reported_means,
)
from everyformer.core.wording import listed
from everyformer.report.headline import decided
from everyformer.report.selection import baseline, crowded
from everyformer.report.style import Styles, swatch
from everyformer.report.words import (
    apart,
    between,
    brief,
    contexts_of,
    faster_from,
    interval,
    quality,
    safe,
    token_cost,
)
from sequence_laws.memory import size

MINUS = "\u2212"
"""as wide as a plus"""


@dataclass(frozen=True)
class Column:
    """A column: what its cells hold and how they are written."""

    title: str
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


@dataclass(frozen=True)
class Cell:
    """A cell of a member's row."""

    value: Any
    """None: unknown"""
    text: str
    below: str
    best: bool
    """whether it may be called the best of its column, with all that cannot be told from it"""


def cells(results: Results) -> tuple[list[Column], list[tuple[TableRow, list[Cell]]]]:
    """Columns behind the members' names, and each trained member's row."""
    columns, rows = _columns(results), finished(results)
    marked = [_best(rows, column) if decided(results) else set() for column in columns]
    lines = [
        (row, [_cell(row, *each) for each in zip(columns, marked, strict=True)]) for row in rows
    ]
    return columns, lines


def table(results: Results, styles: Styles) -> str:
    """The table as HTML, with what explains it below."""
    columns, rows = cells(results)
    limits = _limits(results)
    titles = ["member", *(column.title for column in columns)]
    head = "".join(f'<th scope="col">{safe(title)}</th>' for title in titles)
    families = [*styles.families] if crowded(results) else []
    lines = "".join(_line(row, own, styles, limits[row["member"]], families) for row, own in rows)
    failed = "".join(
        f'<tr><th scope="row">{_name(row["member"], styles)}</th>'
        f'<td class="failed" colspan="{len(columns)}">failed: {safe(row["error"])}</td></tr>'
        for row in results["rows"]
        if row["status"] == "failed"
    )
    bodies = f'<tbody class="trained">{lines}</tbody>' if lines else ""
    bodies += f"<tbody>{failed}</tbody>" if failed else ""
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>{bodies}</table>'
        f"</div>{_about(results, limits)}"
    )


def _cell(row: TableRow, column: Column, best: set[str]) -> Cell:
    value = column.value(row)
    text = "-" if value is None else column.written(value)
    return Cell(value, text, column.below(row), row["member"] in best)


def _line(
    row: TableRow, own: list[Cell], styles: Styles, limits: list[int], families: list[str]
) -> str:
    name = _name(row["member"], styles) + ("*" if row["leaks"] else "")
    name += f"<sup>{', '.join(map(str, limits))}</sup>" if limits else ""
    family, shown = row["group"], ""
    if family in families:
        name += f"<small>{safe(family)}</small>"
        shown = f' class="group{families.index(family)}"'
    return f'<tr{shown}><th scope="row">{name}</th>{"".join(map(_html, own))}</tr>'


def _html(cell: Cell) -> str:
    below = f"<small>{safe(cell.below)}</small>" if cell.below else ""
    number = f' data-value="{cell.value}"' if isinstance(cell.value, int | float) else ""
    mark = ' class="best"' if cell.best else ""
    return f"<td{mark}{number}>{safe(cell.text)}{below}</td>"


def _name(member: str, styles: Styles) -> str:
    return swatch(styles[member].colour) + safe(member)


def _limits(results: Results) -> dict[str, list[int]]:
    """Numbers of the footnotes of each member: a sentence is written once."""
    sentences = _footnotes(results)
    return {
        row["member"]: [1 + sentences.index(limit) for limit in row["limits"]]
        for row in finished(results)
    }


def _footnotes(results: Results) -> list[str]:
    return list(dict.fromkeys(limit for row in finished(results) for limit in row["limits"]))


def _about(results: Results, limits: dict[str, list[int]]) -> str:
    """Remarks on the table: its meaning, what members cannot, and who is waiting."""
    rows = finished(results)
    if not rows:
        return _waiting(results)
    words = [f"Below a quality: its 95% interval over {rows[0]['interval_of']}."]
    if any(row["speed_spread"] or row["decode_spread"] for row in rows):
        words.append(
            "Speeds and memory were measured in rounds in which all members take turns; below a "
            "speed: its quartiles."
        )
    if len(rows) > 1:
        words.append(
            "Seconds to match the last row: of training, until as good as that one at its end."
        )
    if results["bench"]:
        words.append(
            "Layer faster than attention: one layer, forward and backward with a batch of one row, "
            "surely takes less time from this length on; other columns are of the whole model."
        )
    if decided(results) and len(rows) > 1:
        words.append("Bold: best of its column, with all that cannot be told from it.")
    base = baseline(results)
    if crowded(results) and base is not None:
        words.append(f"Differences are to {base['member']}, the baseline.")
    text = f'<p class="why">{safe(" ".join(words))}'
    text += '<span class="narrow"> The table scrolls sideways.</span></p>'
    notes = _footnotes(results)
    if notes:
        items = "".join(f"<li>{safe(note)}</li>" for note in notes)
        text += f'<ol class="limits">{items}</ol>'
    return text + _waiting(results)


def _waiting(results: Results) -> str:
    names = results["waiting"]
    return f'<p class="why">Waiting to be trained: {safe(listed(names))}.</p>' if names else ""


def _columns(results: Results) -> list[Column]:
    metric, rows = METRICS[results["metric"]], finished(results)
    columns = [
        Column(
            f"{metric.unit} ({metric.better} is better)",
            lambda row: row["quality"],
            metric.written,
            metric.better,
            lambda row: interval(row, results["metric"]),
            lambda row: row["interval"],
            tiers=bool(results["contrasts"]),
        )
    ]
    if len(rows) > 1:
        columns.insert(0, Column("tier", lambda row: " ".join(row["letters"]) or None))
    base = baseline(results)
    if crowded(results) and base is not None:
        title = f"difference to {base['member']}"
        columns.append(Column(title, lambda row: _difference(row, base, results)))
    if results["config"]["lr_grid"]:
        columns.append(Column("learning rate", lambda row: row.get("lr"), "{:g}".format))
    columns += [
        Column("parameters", lambda row: row["parameters"], "{:,}".format, None, _ratio),
        Column(
            "training speed (tokens per second)",
            lambda row: row["tokens_per_second"],
            "{:,.0f}".format,
            "higher",
            lambda row: between(row["speed_spread"], "{:,.0f}".format),
            lambda row: row["speed_spread"],
        ),
        Column("memory of training", lambda row: row["peak_bytes"], size, "lower"),
        Column(
            "seconds to match the last row",
            lambda row: row["seconds_to_slowest"],
            brief,
            "lower",
        ),
    ]
    columns += [_decoding(context) for context in contexts_of(rows)]
    columns += [_stream(context) for context in contexts_of(rows) if _kept(rows, context)]
    for mean in reported_means(rows):
        columns.append(Column(mean.title, partial(reported, mean=mean), "{:.2f}".format))
    if results["bench"]:
        title = "layer faster than attention from (tokens)"
        columns.append(Column(title, lambda row: faster_from(row, results)))
    return columns


def _decoding(context: str) -> Column:
    return Column(
        f"writing after {int(context):,} tokens (ms per token)",
        lambda row: row["decode_ms"].get(context),
        brief,
        "lower",
        lambda row: _limit(row, context) or between(row["decode_spread"].get(context)),
        lambda row: row["decode_spread"].get(context),
    )


def _limit(row: TableRow, context: str) -> str:
    return "" if context in row["decode_ms"] else token_cost(row, context).removeprefix("-")


def _kept(rows: list[TableRow], context: str) -> bool:
    return any(context in row.get("decode_bytes", {}) for row in rows)


def _stream(context: str) -> Column:
    return Column(
        f"memory a stream after {int(context):,} tokens",
        lambda row: row.get("decode_bytes", {}).get(context),
        size,
        "lower",
    )


def _difference(row: TableRow, base: TableRow, results: Results) -> str:
    if row is base:
        return "baseline"
    metric = METRICS[results["metric"]]
    change = row["quality"] - base["quality"]
    # "+0.0%" and "-0.000" say more than they know
    written = metric.written(abs(change))
    if written == quality(0.0, results["metric"]):
        return written
    return ("+" if change > 0 else MINUS) + written


def _ratio(row: TableRow) -> str:
    ratio = row["parameter_ratio"]
    return "" if ratio is None or round(ratio, 2) == 1 else f"{ratio:.2f} x the first"


def _best(rows: list[TableRow], column: Column) -> set[str]:
    """Members with the best value of a column or one that cannot be told from it, when there is a
    choice."""
    known = [row for row in rows if column.value(row) is not None]
    values = [column.value(row) for row in known]
    if column.better is None or len(known) < 2 or min(values) == max(values):
        return set()
    best = known[values.index(min(values) if column.better == "lower" else max(values))]
    surely = column.spread(best) is not None and not column.tiers
    same = [
        row
        for row in known
        if row["member"] in best["same_as"] or column.value(row) == column.value(best)
    ]
    near = [row for row in known if surely and not apart(column.spread(best), column.spread(row))]
    if column.tiers:
        near = [row for row in known if set(row["letters"]) & set(best["letters"])]
    result = {row["member"] for row in (*same, *near)}
    return result if len(result) < len(known) else set()
