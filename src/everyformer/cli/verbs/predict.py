"""`everyformer predict RUN [INPUT ...]`: what a trained model answers to each row."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TextIO

import tyro

from everyformer.cli.parsing import TrainedOptions, say, verb
from everyformer.core.bounds import Count
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, DataError
from everyformer.core.wording import pluralise
from everyformer.data.config import Header, Separator
from everyformer.system.console import emit, table
from everyformer.system.files import expanded, named_as

if TYPE_CHECKING:
    from everyformer.tasks.prediction.inputs import Inputs
    from everyformer.tasks.prediction.predictor import Predictor
    from everyformer.tasks.prediction.records import Predictions

ENDINGS = {".csv": "csv", ".jsonl": "jsonl"}
"""of --out -> what is written"""
PAGE = 500
"""rows of a printed table that are laid out together"""


@dataclass(frozen=True)
class TableOptions(Options):
    """Columns of a table that are read."""

    text_column: str | None = None
    """tables: the column with the text, by its name or its number from 1 (default: as in training,
    or the one that is called like a text)"""
    header: Header = "auto"
    """whether the first line of a CSV or TSV names the columns"""
    separator: Separator = "auto"
    """what divides the cells of a CSV or TSV"""
    encoding: str | None = None
    """of text and tables, windows-1252 for one (default: UTF-8, or UTF-16 by its mark)"""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(TrainedOptions):
    """The words of `everyformer predict`."""

    inputs: tyro.conf.Positional[tuple[str, ...]] = ()
    """sentences; files of text (one a line), tables, pictures, arrays (.npy, .npz); folders and
    zips of them; - for lines of stdin. A word is a file if there is one of that name, or if it has
    a known ending or a slash. For a masked language model write [MASK] or ___ for each hidden token
    (default: the held-out part of the run's own data)"""
    data: TableOptions = field(default_factory=TableOptions)
    """tables"""
    top: Count | None = None
    """how many classes (default: 1) or tokens (default: 5) are given with their probabilities"""
    batch: Count = 16
    """rows a forward pass"""
    as_text: bool = False
    """every word is a sentence, whatever it looks like"""
    whole: bool = False
    """a file of text is one text, not one a line"""
    sequences: Count | None = None
    """held-out rows read, at equal distances (default: all)"""
    format: Literal["table", "csv", "jsonl"] | None = None
    """a table for people, CSV, or one JSON object a line (default: as --out ends, else a table)"""
    out: str | None = None
    """file to write: .csv or .jsonl; a table comes back with columns added, as CSV with its
    delimiter, byte-order mark and encoding and the probability of each class"""
    average: Count | None = None
    """take the mean of the weights in so many of the newest checkpoints (default: the best one)"""
    json: bool = False
    """machine output: all predictions in one object"""


@verb(
    PredictOptions,
    about="What a trained run answers: labels with probabilities, numbers, or the next tokens.",
    examples=(
        "everyformer predict runs/attention 'a warm film' 'two dull hours' --top 2",
        "everyformer predict runs/attention reviews.csv --out labelled.csv",
    ),
)
def run(options: PredictOptions) -> int:
    """Print or write every row's prediction, in order."""
    form = _format(options)
    from everyformer.cli.trained import open_run
    from everyformer.system.status import status
    from everyformer.tasks.prediction.predictor import Predictor

    trained = open_run(options.run, options.device)
    reader = Predictor.load(trained.path, average=options.average, device=options.device, say=say)
    inputs, held_out = _inputs(options, trained, reader)
    with status("predicting"):
        count = _write(options, form, reader, inputs, held_out)
    for note in (*inputs.notes(), *reader.notes()):
        say(note)
    if options.out is not None:
        say(f"{pluralise(count - reader.counts['empty'], 'prediction')} in {options.out}")
    return 0


def _format(options: PredictOptions) -> str:
    """Format that is written, before anything is read."""
    if options.json and (options.out is not None or options.format is not None):
        raise ConfigError(
            "--json prints all predictions as one object: leave it out, or --out and --format "
            "(--format jsonl is one object a line)"
        )
    if options.format is not None or options.out is None:
        return "json" if options.json else options.format or "table"
    return ENDINGS[named_as(options.out, tuple(ENDINGS)).suffix.lower()]


def _inputs(options: PredictOptions, trained: Any, reader: Predictor) -> tuple[Inputs, bool]:
    """The rows that are requested, and whether they are those held out."""
    from everyformer.tasks.prediction.inputs import Inputs, Reading

    if options.inputs:
        if options.sequences is not None:
            raise ConfigError("--sequences is for held-out rows: leave it out, or the inputs")
        how = Reading(
            text=options.as_text, whole=options.whole, text_column=options.data.text_column,
            header=options.data.header, separator=options.data.separator,
            encoding=options.data.encoding, stdin=_stdin_lines,
        )  # fmt: skip
        return reader.open(options.inputs, how), False
    dataset = trained.own_dataset("give texts, files, pictures or - after it")
    say(f"the held-out part of {dataset.name}: {dataset.split}")
    return Inputs(reader.held_out(dataset, options.batch, options.sequences), False), True


def _stdin_lines() -> Iterator[str]:
    """Lines of stdin as they come.

    Raises:
        DataError: they are not UTF-8.
    """
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise DataError(f"stdin is not UTF-8 text ({error.reason}); convert it first") from error
    finally:
        lines.detach()


def _write(
    options: PredictOptions, form: str, reader: Predictor, inputs: Inputs, held_out: bool
) -> int:
    """Write all predictions as they come; gives how many."""
    from everyformer.tasks.prediction.records import fields_of
    from everyformer.tasks.prediction.writing import output, write_answers

    out = None if options.out is None else expanded(options.out)
    how: Any = {"top": options.top, "batch": options.batch}
    if form in ("csv", "jsonl"):
        return write_answers(reader, inputs, out, form, target=held_out, **how)  # type: ignore[arg-type]
    answers = reader.predict(inputs.rows, **how)
    if form == "json":
        predictions = [fields_of(row, one) for row, one in answers]
        emit({"run": options.run, "predictions": predictions})
        return len(predictions)
    with output(out) as file:
        return _write_table(answers, reader.columns(options.top, held_out), file)


def _write_table(answers: Predictions, columns: list[str], out: TextIO) -> int:
    """Write a table for people, a page at a time; gives how many predictions are in it."""
    from everyformer.tasks.prediction.records import headers, shown

    count, page = 0, list[list[Any]]()
    for _, prediction in answers:
        count += 1
        page += shown(prediction, columns)
        if len(page) >= PAGE:
            print(table(headers(columns), page), file=out)
            page = []
    if page:
        print(table(headers(columns), page), file=out)
    return count
