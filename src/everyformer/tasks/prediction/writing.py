"""Predictions as files for programs, written whole or not at all."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from tqdm import tqdm

from everyformer.core.wording import join_names
from everyformer.system.files import file_written_whole
from everyformer.tasks.prediction.inputs import Inputs
from everyformer.tasks.prediction.predictor import Predictor
from everyformer.tasks.prediction.records import Predictions, added_names, write_csv, write_lines

Form = Literal["csv", "jsonl"]


def write_answers(
    reader: Predictor,
    inputs: Inputs,
    out: Path | None,
    form: Form,
    *,
    top: int | None = None,
    target: bool = False,
    batch: int = 16,
) -> int:
    """Write every row with its answer into a file, or to stdout; gives how many.

    A CSV of a table has its delimiter, byte-order mark and, in a file, its encoding; of classes it
    has the probability of each.

    Raises:
        DataError: see `Predictor.predict` and `write_csv`.
    """
    shares = reader.shares() if form == "csv" else []
    columns = [*reader.columns(top, target), *shares]
    wanted = len(shares) or top
    answers: Predictions = reader.predict(inputs.rows, top=wanted, batch=batch)
    # with the first row the form and the columns of its table are known
    first = next(iter(answers))
    answers, taken = itertools.chain([first], answers), dict(first[0].cells)
    plain, free = (added_names(columns, names) for names in ((), taken))
    if renamed := [f"'{free[c]}'" for c in columns if taken and plain[c] != free[c]]:
        inputs.remarks.append(
            f"the table has columns of that name already, so what is added is {join_names(renamed)}"
        )
    with output(out, inputs.form.encoding if form == "csv" else "utf-8") as file:
        if out is not None:
            answers = tqdm(answers, desc="predicting", unit="rows", disable=None)
        if form == "csv":
            return write_csv(answers, file, columns, inputs.form)
        return write_lines(answers, file)


@contextmanager
def output(out: Path | None, encoding: str = "utf-8") -> Iterator[TextIO]:
    """A file that is written whole or not at all; None: stdout."""
    if out is None:
        yield sys.stdout
        return
    with (
        file_written_whole(out, parents=True) as path,
        path.open("w", encoding=encoding, newline="") as file,
    ):
        yield file
