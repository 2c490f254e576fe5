"""Inputs as people give them: sentences, lines, tables, pictures, arrays, read as rows.

A word is a file where there is one of that name, or where it looks like one (a known ending, or a
slash), and else a sentence. Nothing is held in memory but the row that is read; arrays are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.wording import pluralise
from everyformer.data.arrays import read_inputs, rows_for
from everyformer.data.config import DataConfig, Header, Separator
from everyformer.data.delimited import DelimitedTable
from everyformer.data.headers import decimal_commas
from everyformer.data.layout import without_notes
from everyformer.data.pictures import opened, pillow, pixels_of
from everyformer.data.sources import ARRAYS, PICTURES, Entry, Source, open_source, text_lines
from everyformer.data.table import TABLES, Cells, JsonTable, Table
from everyformer.data.tables import TableReader, text_reader
from everyformer.system.files import expanded, is_address
from everyformer.tasks.prediction.records import CsvForm, Row

if TYPE_CHECKING:
    from everyformer.tasks.prediction.predictor import Predictor

TEXTS = {".txt", ".md", ".text"}
KNOWN = {*TABLES, *ARRAYS, *PICTURES, *TEXTS, ".zip", ".gz"}
"""endings by which a word is a file, whether it is there or not"""
LINES = "-"
"""the word for lines of stdin"""

Kind = Literal["sentences", "texts", "tables", "pictures", "arrays"]

ENDINGS: dict[frozenset[str], Kind] = {
    frozenset(TABLES): "tables",
    frozenset(PICTURES): "pictures",
    frozenset(ARRAYS): "arrays",
}
"""kinds of files by their endings; all others are texts"""


@dataclass(frozen=True)
class Reading:
    """Options by which inputs are read."""

    text: bool = False
    """every word is a sentence, whatever it looks like"""
    whole: bool = False
    """a file of text is one text, not one a line"""
    text_column: str | None = None
    """of tables, by name or number from 1 (default: the obvious one)"""
    header: Header = "auto"
    """of CSV and TSV"""
    separator: Separator = "auto"
    """of CSV and TSV"""
    encoding: str | None = None
    """of text and tables (default: UTF-8)"""
    stdin: Callable[[], Iterator[str]] = lambda: iter(())
    """the lines that ``-`` stands for"""


@dataclass
class Inputs:
    """Rows, and what there is to say of them."""

    rows: Iterator[Row]
    tables: bool
    """whether they are rows of tables, whose columns are kept"""
    remarks: list[str] = field(default_factory=list)
    """what was found"""
    resized: int = 0
    """pictures of another size than the model reads"""
    form: CsvForm = field(default_factory=CsvForm)
    """of the first table, known with its first row"""

    def notes(self) -> list[str]:
        """Remarks when the rows have been read, half a sentence each."""
        if not self.resized:
            return self.remarks
        return [*self.remarks, f"{pluralise(self.resized, 'picture')} resized as in training"]


def open_inputs(words: Sequence[str | Path], reader: Predictor, how: Reading) -> Inputs:
    """The rows of all ``words``, in order, as ``reader``'s model reads them.

    Raises:
        DataError: a file that is not there, is empty or holds another kind of data than is read.
        ConfigError: an empty sentence; tables with what is none.
    """
    kinds = [(word, _kind(word, reader, how)) for word in words]
    for word, kind in kinds:
        _require_fit(word, kind, reader)
    tables = [word for word, kind in kinds if kind == "tables"]
    if tables and len(tables) < len(kinds):
        raise ConfigError(
            f"'{tables[0]}' is a table, which comes back with columns added, and others are none: "
            "give tables by themselves"
        )
    inputs = Inputs(iter(()), bool(tables))
    readers: dict[Kind, Callable[[Any, Inputs, Predictor, Reading], Iterator[Row]]] = {
        "sentences": _sentence,
        "texts": _texts,
        "tables": _table_rows,
        "pictures": _pictures,
        "arrays": _arrays,
    }
    parts = (readers[kind](word, inputs, reader, how) for word, kind in kinds)
    inputs.rows = itertools.chain.from_iterable(parts)
    return inputs


def array_inputs(rows: np.ndarray | Tensor, reader: Predictor) -> Inputs:
    """The rows of an array: pictures, series or tokens (see `everyformer.data.arrays.rows_for`)."""
    array = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else rows
    if not len(array):
        raise DataError("there are no rows to predict: give at least one")
    inputs = Inputs(iter(()), False)
    values = rows_for(array, reader.task, "the array", None)
    inputs.rows = _array_rows("row", *values, inputs, reader)
    return inputs


def _kind(word: str | Path, reader: Predictor, how: Reading) -> Kind:
    """The kind of source that a word stands for."""
    if how.text or word == LINES or not str(word).strip():
        return "sentences"
    path = Path(word) if is_address(word) else expanded(word)
    looks = isinstance(word, Path) or path.suffix.lower() in KNOWN or "/" in word
    if not (looks or _exists(path)) and reader.task.embeds_text:
        return "sentences"
    try:
        with open_source(str(word)) as source:
            return _held(source, reader.task.pictures)
    except (ConfigError, DataError) as error:
        if _exists(path):
            raise
        if not reader.task.embeds_text:
            raise DataError(f"{error}; {reader.name} reads {_reads(reader)}") from error
        raise DataError(
            f"{error}; a sentence that looks so is read with `as_text`, from Python with "
            f"`text=True`"
        ) from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a sentence is too long for a name
        return False


def _held(source: Source, pictured: bool) -> Kind:
    """Contents of a source: pictures, where a model reads them, and texts and tables next to them.

    Raises:
        DataError: several kinds of data.
    """
    first: dict[Kind, Entry] = {}
    for entry in without_notes(source.entries):
        kind: Kind = "texts"
        for suffixes, name in ENDINGS.items():
            kind = name if entry.suffix in suffixes else kind
        first.setdefault(kind, entry)
    if pictured and "pictures" in first and {*first} <= {"pictures", "texts", "tables"}:
        return "pictures"
    if len(first) > 1:
        result = " and ".join(f"{kind} ({entry.name})" for kind, entry in first.items())
        raise DataError(f"'{source.spec}' holds {result}: give one kind at a time")
    return next(iter(first))


def _require_fit(word: str | Path, kind: Kind, reader: Predictor) -> None:
    """Refuse what the model does not read."""
    task = reader.task
    able: tuple[Kind, ...] = ("sentences", "texts", "tables", "arrays")
    if not task.embeds_text:
        able = ("pictures", "arrays") if task.pictures else ("arrays",)
    if kind not in able:
        what = "is a sentence" if kind == "sentences" else f"holds {kind}"
        raise DataError(f"'{word}' {what}, but {reader.name} reads {_reads(reader)}")


def _reads(reader: Predictor) -> str:
    """The kind of input of a model, for messages."""
    what = "pictures" if reader.task.pictures else "texts"
    return f"{'series (.npy, .npz)' if reader.task.series else what} (task {reader.task.name})"


def _sentence(word: str | Path, inputs: Inputs, reader: Predictor, how: Reading) -> Iterator[Row]:
    if word == LINES and not how.text:
        lines = how.stdin()
        first = next(lines, None)
        if first is None:
            raise DataError("stdin is empty: give a text on each line")
        yield from _lines(itertools.chain([first], lines))
        return
    if not str(word).strip():
        raise ConfigError("a text is empty: give at least one character")
    yield Row(str(word), str(word))


def _lines(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        text = line.rstrip("\r\n")
        yield Row(text, text)


def _texts(word: str | Path, inputs: Inputs, reader: Predictor, how: Reading) -> Iterator[Row]:
    with open_source(str(word), how.encoding) as source:
        entries = without_notes(source.entries)
        if len(entries) > 1 and not how.whole:
            inputs.remarks.append(
                f"every line of the {len(entries):,} files in '{word}' is a text; --whole makes "
                "each file one"
            )
        for entry in entries:
            lines = text_lines(source, entry, newline="")
            if how.whole:
                yield Row(entry.name, "".join(lines))
            else:
                yield from _lines(lines)


def _table_rows(word: str | Path, inputs: Inputs, reader: Predictor, how: Reading) -> Iterator[Row]:
    with open_source(str(word), how.encoding) as source:
        entries = without_notes(source.entries)
        config = DataConfig(
            source=str(word), text_column=how.text_column, header=how.header,
            separator=how.separator,
        )  # fmt: skip
        result = _text_column(source, config, entries[0], reader)
        yield from _whole_rows(result, entries, inputs)
        inputs.remarks += [f"'{word}': {note}" for note in result.notes]


def _whole_rows(columns: TableReader, entries: Sequence[Entry], inputs: Inputs) -> Iterator[Row]:
    """Rows of tables with all of their cells; the text is what ``columns`` reads first."""
    table, text = columns.first, columns.indices[0]
    if isinstance(table, DelimitedTable):
        # tabs do not fit the name of a CSV
        tabs = table.delimiter == "\t" and table.entry.suffix == ".tsv"
        inputs.form.delimiter = "," if tabs else table.delimiter
        inputs.form.encoding, inputs.form.marked = columns.source.encoding_of(table.entry)
        if inputs.form.delimiter != "," and decimal_commas(itertools.chain(*table.sample)):
            inputs.form.decimal = ","
    every = [text, *(index for index in range(table.width) if index != text)]
    whole = TableReader(columns.source, columns.config, table, every)
    for entry in entries:
        yield from _rows_of(whole, entry)


def _text_column(
    source: Source, config: DataConfig, entry: Entry, reader: Predictor
) -> TableReader:
    """Reads the column of texts: the one that is given, or that of training, or the obvious one.

    Raises:
        ConfigError: an option names no column; several could be meant, or none.
    """
    if config.text_column is None and reader.text_column is not None:
        with suppress(ConfigError):  # a table of another form
            return text_reader(source, replace(config, text_column=reader.text_column), entry)
    return text_reader(source, config, entry)


def _rows_of(reader: TableReader, entry: Entry) -> Iterator[Row]:
    """The rows of one table with all of their cells in their order; the first index is the text."""
    first = reader.first
    if isinstance(first, JsonTable):
        same = first if entry.name == first.entry.name else JsonTable(reader.source, entry)
        text = first.names[reader.indices[0]]
        for number, fields in same.objects():
            value = Cells(first, number, reader.indices, (fields.get(text),)).text(0)
            yield Row(value, value, tuple(fields.items()))
        return
    names = _unique(first)
    for row in reader.rows(entry):
        value = row.text(0)
        by_index = dict(zip(reader.indices, row.values, strict=True))
        yield Row(value, value, tuple((name, by_index[i]) for i, name in enumerate(names)))


def _unique(table: Table) -> list[str]:
    """Names of the columns; those without one are numbered, from 1, and names that come again."""
    names: list[str] = []
    for number, name in enumerate(table.names or [""] * table.width, 1):
        own = name if name and name not in names else f"{name or 'column'}_{number}"
        while own in names:
            own += "_"
        names.append(own)
    return names


def _pictures(word: str | Path, inputs: Inputs, reader: Predictor, how: Reading) -> Iterator[Row]:
    assert reader.config.image is not None
    channels, height, width = reader.config.image
    with open_source(str(word)) as source:
        entries = [e for e in without_notes(source.entries) if e.suffix in PICTURES]
        single = len(entries) == 1 and source.archive is None
        pictures = opened(source, entries, "reading pictures", quiet=single)
        for entry, picture in zip(entries, pictures, strict=True):
            inputs.resized += picture.size != (width, height)
            pixels = pixels_of(picture, (width, height), channels == 1)
            yield Row(str(word) if single else entry.name, np.ascontiguousarray(pixels))


def _arrays(word: str | Path, inputs: Inputs, reader: Predictor, how: Reading) -> Iterator[Row]:
    with open_source(str(word)) as source:
        for entry in source.entries:
            one = Source(source.spec, [entry], archive=source.archive)
            values = read_inputs(one, reader.task)
            yield from _array_rows(Path(entry.name).name, *values, inputs, reader)


def _array_rows(
    name: str,
    values: np.ndarray,
    lengths: np.ndarray | None,
    inputs: Inputs,
    reader: Predictor,
) -> Iterator[Row]:
    """One row of an array after the other, pictures fitted to the model.

    Raises:
        DataError: steps of another number of features.
    """
    config = reader.config
    if reader.task.series and values.shape[-1] != config.series:
        raise DataError(
            f"{name} holds series of {values.shape[-1]} numbers at each step, but {reader.name} "
            f"reads {config.series}"
        )
    for index, row in enumerate(values):
        row = row if lengths is None else row[: lengths[index]]
        if config.image is not None:
            row = _fitted(row, config.image, inputs)
        yield Row(f"{name} {index + 1}", row)


def _fitted(pixels: np.ndarray, image: tuple[int, int, int], inputs: Inputs) -> np.ndarray:
    """A picture (C, H, W) in the size and the channels that the model reads."""
    channels, height, width = image
    if pixels.shape == image:
        return pixels
    inputs.resized += pixels.shape[1:] != (height, width)
    plane = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    picture = pillow("resizing pictures").fromarray(np.ascontiguousarray(plane))
    return np.ascontiguousarray(pixels_of(picture, (width, height), channels == 1))
