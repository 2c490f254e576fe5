"""Predictions as lines: of CSV and JSON lines for programs, of a table for people.

A row of a table comes back with all of its columns, and the new ones, called ``predicted_...``,
behind them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from everyformer.core.errors import DataError
from everyformer.prediction.records import Candidate, Prediction, Row
from everyformer.system.plain import to_json

ADDED = "predicted_"
WIDEST = 48
"""characters of an input that people are shown"""

Predictions = Iterable[tuple[Row, Prediction]]


def fields_of(row: Row, prediction: Prediction) -> dict[str, Any]:
    """One prediction as an object of JSON, the cells of its row first."""
    result = prediction.fields()
    if not row.cells:
        return result
    del result["input"]
    return dict(row.cells) | {ADDED + name: value for name, value in result.items()}


def write_lines(predictions: Predictions, out: TextIO) -> int:
    """Write one object a line; gives how many."""
    count = 0
    for row, prediction in predictions:
        count += 1
        out.write(to_json(fields_of(row, prediction), ensure_ascii=False, default=str) + "\n")
    return count


def write_csv(predictions: Predictions, out: TextIO, columns: Sequence[str]) -> int:
    """Write a line of names and one a prediction; gives how many.

    Args:
        columns: of the predictions (see `Predictor.columns`).

    Raises:
        DataError: a row of JSON lines with other fields than the first.
    """
    writer = csv.writer(out, lineterminator="\n")
    names: tuple[str, ...] = ()
    count = 0
    for count, (row, prediction) in enumerate(predictions, 1):
        cells = dict(row.cells)
        if count == 1:
            names = tuple(cells)
            added = [ADDED + name for name in columns] if cells else ["input", *columns]
            writer.writerow([*names, *added])
        if new := [name for name in cells if name not in names]:
            raise DataError(
                f"row {count:,} has a field '{new[0]}' that the first row has not, so it does not "
                "fit a CSV: take --format jsonl"
            )
        given = [_written(cells.get(name)) for name in names] if names else [prediction.input]
        answered = prediction.cells()
        writer.writerow([*given, *(answered.get(name, "") for name in columns)])
    return count


def shown(prediction: Prediction, columns: Sequence[str]) -> Iterator[list[Any]]:
    """The lines that people are shown of one prediction, as cells."""
    if not (prediction.tokens or prediction.masks):
        answered = prediction.cells()
        yield [_short(prediction.input), *(answered.get(name) for name in columns)]
        return
    first = _short(prediction.input, end=not prediction.masks)
    true = [] if "target" not in columns else [repr(prediction.target)]
    for number, candidates in enumerate(prediction.masks or [prediction.tokens], 1):
        for line in _candidates(candidates):
            yield [first, *true, *([number] if prediction.masks else []), *line]
            first, true = "", [""] * len(true)


def headers(columns: Sequence[str]) -> list[str]:
    """The headers of the columns."""
    if "masks" in columns:
        return ["text", "mask", "token", "probability"]
    if "token" in columns:
        return ["after", *(["target"] if "target" in columns else []), "token", "probability"]
    return ["input", *columns]


def _candidates(candidates: Sequence[Candidate]) -> Iterator[list[Any]]:
    for one in candidates:
        yield [repr(one.text), f"{one.probability:.4f}"]


def _written(value: Any) -> Any:
    """A cell of a table; lists and objects stay JSON."""
    if isinstance(value, dict | list):
        return to_json(value, ensure_ascii=False)
    return "" if value is None else value


def _short(text: str, end: bool = False) -> str:
    """At most `WIDEST` characters on one line, of its end where that is what counts."""
    line = " ".join(text.split())
    if len(line) <= WIDEST:
        return line
    return f"…{line[1 - WIDEST :]}" if end else f"{line[: WIDEST - 1]}…"
