"""A comparison as text: what it allows to say, the table, and what to do next."""

from typing import Any

from everyformer.benchmark.points import BASELINE
from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import (
    Interval,
    Results,
    TableRow,
    finished,
    reported,
    reported_means,
)
from everyformer.comparison.summary import NOT_WRITING
from everyformer.core.columns import shown, table
from everyformer.core.wording import listed
from everyformer.report.headline import answer
from everyformer.report.notes import baseline_notes, drifts
from everyformer.report.words import (
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


def render(results: Results) -> str:
    """The one table that a person can decide from."""
    metric, done = results["metric"], finished(results)
    failed = [row for row in results["rows"] if row["status"] != "done"]
    leaks = [row for row in done if row.get("leaks")]
    notes = [f"* {row['member']}: {NOT_WRITING}: {row['leaks']}" for row in leaks]
    limits = dict.fromkeys(limit for row in done for limit in row["limits"])
    for limit in limits:
        names = [row["member"] for row in done if limit in row["limits"]]
        notes.append(f"{listed(names)}: {'each ' if len(names) > 1 else ''}{limit}")
    notes += [f"{row['member']} failed: {row['error']}" for row in failed if row["error"]]
    better = (
        f"{results['better']} is better; members with a letter of their tier in common cannot be "
        "told apart; speeds and memory are of rounds in which all take turns, (low to high) their "
        "quartiles"
    )
    notes += [*baseline_notes(done, metric), *drifts(done, results["config"])]
    lines = [answer(results), "", table(*cells(results)), better, *notes]
    if results["next"]:
        widest = max(len(words) for words, _ in results["next"])
        lines += ["", *(f"{words:<{widest}}  {command}" for words, command in results["next"])]
    return "\n".join(lines)


def cells(results: Results) -> tuple[list[str], list[list[Any]]]:
    """The headers and the rows of the table, members that failed last."""
    metric, done = results["metric"], finished(results)
    contexts = contexts_of(done)
    headers = ["member", "tier", METRICS[metric].unit, "95% interval"]
    headers += [*["learning rate"] * bool(results["config"]["lr_grid"]), "parameters", "steps"]
    headers += ["tokens/s in training", "memory", "s to match the last row"]
    headers += [f"ms a token after {int(c):,}" for c in contexts]
    headers += [f"memory a stream after {int(c):,}" for c in contexts]
    headers += [mean.brief for mean in reported_means(done)]
    if results["bench"]:
        headers.append(f"layer faster than {BASELINE} from (tokens)")
    rows = [_cells(row, results, contexts) for row in done]
    failed = [row["member"] for row in results["rows"] if row["status"] != "done"]
    return headers, rows + [[name, "failed", *[None] * (len(headers) - 2)] for name in failed]


def as_html(results: Results) -> str:
    """The same answer and table for a notebook."""
    headers, rows = cells(results)
    head = "".join(f"<th>{safe(header)}</th>" for header in headers)
    body = "".join(
        f"<tr>{''.join(f'<td>{safe(shown(value))}</td>' for value in row)}</tr>" for row in rows
    )
    return (
        f"<p>{safe(answer(results))}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _cells(row: TableRow, results: Results, contexts: list[str]) -> list[Any]:
    metric = results["metric"]
    cells = [
        row["member"] + ("*" if row.get("leaks") else ""),
        "".join(row["letters"]),
        quality(row["quality"], metric),
        interval(row, metric),
        *[row.get("lr")] * bool(results["config"]["lr_grid"]),
        f"{row['parameters']:,}",
        f"{row['steps']:,.0f}",
        _spread(row["tokens_per_second"], row["speed_spread"]),
        size(row["peak_bytes"]),
        row.get("seconds_to_slowest"),
    ]
    cells += [
        _spread(row["decode_ms"].get(context), row["decode_spread"].get(context))
        or token_cost(row, context)
        for context in contexts
    ]
    cells += [size(row.get("decode_bytes", {}).get(context)) for context in contexts]
    cells += [reported(row, mean) for mean in reported_means(finished(results))]
    if results["bench"]:
        cells.append(faster_from(row, results))
    return cells


def _spread(value: float | None, around: Interval | None) -> str | None:
    """A number and its quartiles."""
    if value is None:
        return None
    return brief(value) + (f" ({between(around)})" if around else "")
