"""Rows that are read, predictions that a model answers, and how they are written.

As lines of CSV and JSON lines for programs, of a table for people. A row of a table comes back with
all of its columns, and the new ones, called ``predicted_...``, behind them. A CSV of classes has
the probability of each, ``p(CLASS)``, too.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

import numpy as np

from everyformer.core.errors import DataError
from everyformer.core.wording import shortened
from everyformer.system.plain import to_json

ADDED = "predicted_"
WIDEST = 48
"""characters of an input that people are shown"""


@dataclass(frozen=True)
class Row:
    """One row to be read."""

    shown: str
    """what its prediction calls it"""
    value: str | np.ndarray
    """a text; or tokens (L,), steps of a series (L, n) or a picture (C, H, W) uint8"""
    cells: tuple[tuple[str, Any], ...] = ()
    """the columns of the table that it is a row of, with their names"""
    target: Any = None
    """what is true, where that is known"""


class Candidate(NamedTuple):
    """One class or one token, with its probability."""

    text: str
    """name of the class, or text of the token"""
    probability: float
    id: int


@dataclass(frozen=True)
class Prediction:
    """The answer of a model to one row; fields without a use for its task stay empty.

    A row without text, such as an empty line of a file, has ``input`` alone.
    """

    input: str
    """the text, or the name of the file or the number of the row that was read"""
    label: str | None = None
    """the most probable class"""
    probability: float | None = None
    """of that class"""
    top: tuple[Candidate, ...] = ()
    """as many classes as were requested, the most probable first"""
    value: float | tuple[float, ...] | None = None
    """the predicted number, or several, in the units of the training data"""
    tokens: tuple[Candidate, ...] = ()
    """what may come next, the most probable first"""
    masks: tuple[tuple[Candidate, ...], ...] = ()
    """for each mask what it may hide, the most probable first"""
    filled: str | None = None
    """the text with the most probable tokens in the masks' places"""
    target: str | float | tuple[float, ...] | None = None
    """of a held-out row what is true"""

    def fields(self) -> dict[str, Any]:
        """The fields that are filled, as plain values for JSON."""
        result: dict[str, Any] = {"input": self.input}
        for name in ("target", "label", "probability", "value", "filled"):
            if getattr(self, name) is not None:
                result[name] = getattr(self, name)
        if len(self.top) > 1:
            result["top"] = [{"label": one.text, "probability": one[1]} for one in self.top]
        if self.tokens:
            result["tokens"] = _tokens(self.tokens)
        if self.masks:
            result["masks"] = [_tokens(candidates) for candidates in self.masks]
        return result

    def cells(self) -> dict[str, Any]:
        """A line of a table of the same: candidates side by side, numbered from the second on."""
        result: dict[str, Any] = {} if self.target is None else _numbered("target", self.target)
        for rank, one in enumerate(self.top, 1):
            result |= {ranked("label", rank): one.text, ranked("probability", rank): one[1]}
            result[share(one.text)] = one.probability
        if self.value is not None:
            result |= _numbered("value", self.value)
        for rank, one in enumerate(self.tokens, 1):
            result |= {ranked("token", rank): one.text, ranked("probability", rank): one[1]}
        if self.filled is not None:
            masks = [_tokens(candidates) for candidates in self.masks]
            result |= {"filled": self.filled, "masks": to_json(masks, ensure_ascii=False)}
        return result


def _tokens(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [{"token": one.text, "id": one.id, "probability": one[1]} for one in candidates]


def ranked(name: str, rank: int) -> str:
    """The column of the candidate of this rank, counted from 1."""
    return name if rank == 1 else f"{name}_{rank}"


def candidates(name: str, count: int, target: bool) -> list[str]:
    """The columns of so many candidates with their probabilities, behind what is true."""
    each = [ranked(of, rank) for rank in range(1, count + 1) for of in (name, "probability")]
    return ["target", *each] if target else each


def share(name: str) -> str:
    """The column of the probability of a class."""
    return f"p({name})"


def added_names(columns: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Names of ``columns`` behind those of a table that are ``taken``, numbered where one is that
    already."""
    known, result = set(taken), dict[str, str]()
    for column in columns:
        name = column if column.startswith(share("")[:-1]) else ADDED + column
        free = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
        result[column] = next(each for each in free if each not in known)
        known.add(result[column])
    return result


def _numbered(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, tuple):
        return {name: value}
    return {f"{name}_{number}": one for number, one in enumerate(value, 1)}


Predictions = Iterable[tuple[Row, Prediction]]


@dataclass
class CsvForm:
    """The form of a file of comma-separated values."""

    delimiter: str = ","
    encoding: str = "utf-8"
    marked: bool = False
    """True if it begins with a byte-order mark, by which spreadsheets know UTF-8"""
    decimal: str = "."
    """what stands before the decimals of its numbers"""


def fields_of(row: Row, prediction: Prediction) -> dict[str, Any]:
    """One prediction as an object of JSON, the cells of its row first."""
    result = prediction.fields()
    if not row.cells:
        return result
    del result["input"]
    names = added_names(result, dict(row.cells))
    return dict(row.cells) | {names[name]: value for name, value in result.items()}


def write_lines(predictions: Predictions, out: TextIO) -> int:
    """Write one object a line; gives how many."""
    count = 0
    for row, prediction in predictions:
        count += 1
        out.write(to_json(fields_of(row, prediction), ensure_ascii=False, default=str) + "\n")
    return count


def write_csv(predictions: Predictions, out: TextIO, columns: Sequence[str], form: CsvForm) -> int:
    """Write a line of names and one a prediction; gives how many.

    Args:
        columns: of the predictions (see `Predictor.columns`).
        form: read once the first row is there.

    Raises:
        DataError: a row of JSON lines with other fields than the first; characters that the
            encoding of ``out`` lacks.
    """
    writer: Any = None
    names: tuple[str, ...] = ()
    count = 0
    for count, (row, prediction) in enumerate(predictions, 1):
        cells = dict(row.cells)
        if writer is None:
            names = tuple(cells)
            out.write("\ufeff" * form.marked)
            writer = csv.writer(out, delimiter=form.delimiter, lineterminator="\n")
            added = added_names(columns, names).values() if cells else ["input", *columns]
            _write(writer, [*names, *added], count)
        if new := [name for name in cells if name not in names]:
            raise DataError(
                f"row {count:,} has a field '{new[0]}' that the first row has not, so it does not "
                "fit a CSV: take `format=jsonl`"
            )
        given = [_written(cells.get(name)) for name in names] if names else [prediction.input]
        answered = prediction.cells()
        cells_of = [_with_mark(answered.get(name, ""), form.decimal) for name in columns]
        _write(writer, [*given, *cells_of], count)
    return count


def _with_mark(value: Any, decimal: str) -> Any:
    """An answer as a cell, a number with that mark of decimals."""
    return str(value).replace(".", decimal) if isinstance(value, float) else value


def _write(writer: Any, cells: Sequence[Any], number: int) -> None:
    try:
        writer.writerow(cells)
    except UnicodeEncodeError as error:
        raise DataError(
            f"row {number:,} or its answer has {error.object[error.start : error.end]!r}, which "
            f"{error.encoding}, the encoding of the table, has not: write a .jsonl, which is "
            "UTF-8, or save the table as UTF-8 first"
        ) from error


def shown(prediction: Prediction, columns: Sequence[str]) -> Iterator[list[Any]]:
    """The lines that people are shown of one prediction, as cells."""
    line = " ".join(prediction.input.split())
    if not (prediction.tokens or prediction.masks):
        answered = prediction.cells()
        yield [shortened(line, WIDEST), *(answered.get(name) for name in columns)]
        return
    first = shortened(line, WIDEST, end=not prediction.masks)
    true = [] if "target" not in columns else [repr(prediction.target)]
    for number, candidates in enumerate(prediction.masks or [prediction.tokens], 1):
        for one in candidates:
            guess = [repr(one.text), f"{one.probability:.4f}"]
            yield [first, *true, *([number] if prediction.masks else []), *guess]
            first, true = "", [""] * len(true)


def headers(columns: Sequence[str]) -> list[str]:
    """The headers of the columns."""
    if "masks" in columns:
        return ["text", "mask", "token", "probability"]
    if "token" in columns:
        return ["after", *(["target"] if "target" in columns else []), "token", "probability"]
    return ["input", *columns]


def _written(value: Any) -> Any:
    """A cell of a table; lists and objects stay JSON."""
    if isinstance(value, dict | list):
        return to_json(value, ensure_ascii=False)
    return "" if value is None else value
