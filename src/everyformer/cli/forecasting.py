"""Forecasts in the verbs: the table of `eval`, and what `predict` writes of series."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError
from everyformer.core.wording import counted
from everyformer.system.files import expanded, write_text
from everyformer.system.plain import to_json

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun

MEASURES = ("wql", "mase", "mae", "rmse")
KINDS = {"": "the model", "naive": "naive", "seasonal": "seasonal naive", "drift": "drift"}
SHOWN = 40
"""rows that are printed; a file has all"""


def forecast_table(evaluation: dict[str, Any], its_worth: str | None) -> str:
    """Errors of an evaluation beside those of forecasts without a model."""
    present = [name for name in MEASURES if name in evaluation]
    rows = [
        [called, *(evaluation[f"{kind}_{name}" if kind else name] for name in present)]
        for kind, called in KINDS.items()
    ]
    parts = [table(["forecast", *(name.upper() for name in present)], rows)]
    for name in present:
        if (around := evaluation.get(f"{name}_interval")) is not None:
            low, high = around
            parts.append(f"{name.upper()} of the model, 95% interval: {low:.4g} to {high:.4g}")
    parts.append(
        f"{evaluation['coverage']:.1%} of {evaluation['scored']:,} values lie within the outermost "
        f"quantiles, where {evaluation['stated_coverage']:.1%} should"
    )
    if without := evaluation.get("without_mase"):
        parts.append(f"{counted(without, 'forecast')} without MASE, of series that never changed")
    return "\n".join([parts[0], "", *parts[1:], *([its_worth] if its_worth else [])])


def predict_series(
    run: TrainedRun,
    words: Sequence[str],
    *,
    form: str,
    out: str | None,
    batch: int,
    average: int | None,
    anomalies: bool,
) -> int:
    """Write the next values of every series, or all values beside what was expected of them.

    Args:
        words: one table, or none: the run's own.
        form: table, csv, jsonl or json.
    """
    from everyformer.prediction.forecasts import SeriesReader
    from everyformer.system.pulse import doing

    if len(words) > 1:
        raise ConfigError(f"give one table (a file, folder, glob or zip), not {len(words)}")
    reader = SeriesReader.load(run.path, average, run.device)
    data = reader.read(words[0] if words else None)
    with doing("predicting"):
        if anomalies:
            judged = reader.judged(data, batch=batch)
            rows = [one.row() for one in judged]
        else:
            rows = [row for one in reader.forecasts(data, batch) for row in one.rows()]
    if form == "json":
        emit({"run": str(run.path), "anomalies" if anomalies else "forecasts": rows})
    elif out is None:
        print(_text(rows, form, anomalies), end="")
    else:
        write_text(expanded(out), _text(rows, form, anomalies), parents=True)
    for note in data.series.notes:
        say(note)
    if anomalies:
        strange = sum(row["anomaly"] for row in rows)
        say(f"{strange:,} of {len(rows):,} values leave their interval, {strange / len(rows):.1%}, "
            f"where {reader.stated_rate:.1%} should")  # fmt: skip
        if echoes := sum(row["echo"] for row in rows):
            say(f"{echoes:,} of these may be an echo: their interval follows a value that left its "
                f"own {counted(data.season, 'step')} before")  # fmt: skip
        checked = reader.held_out_rate(batch)
        say(
            "no held-out data of the run is there to check that rate on"
            if checked is None
            else f"on the run's held-out data {checked[0]:.1%} of {checked[1]:,} do"
        )
    if out is not None:
        say(f"{counted(len(rows), 'row')} in {out}")
    return 0


def _text(rows: list[dict[str, Any]], form: str, anomalies: bool) -> str:
    if form == "csv":
        made = io.StringIO(newline="")
        writer = csv.DictWriter(made, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return made.getvalue()
    if form == "jsonl":
        return "".join(to_json(row, ensure_ascii=False) + "\n" for row in rows)
    shown = sorted(filter(_excess, rows), key=_rank) if anomalies else rows
    if len(shown) > SHOWN:
        say(f"{len(shown) - SHOWN:,} rows more: --out FILE.csv has all")
    return table([*rows[0]], [[*row.values()] for row in shown[:SHOWN]]) + "\n"


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    """Echoes behind all others, each the furthest outside first."""
    return row["echo"], -_excess(row)


def _excess(row: dict[str, Any]) -> float:
    """The distance of a value from its interval, in widths of that; 0 inside."""
    beyond = max(row["low"] - row["value"], row["value"] - row["high"], 0.0)
    return beyond / (row["high"] - row["low"] or 1.0)
