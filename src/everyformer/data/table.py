"""Tables: names of columns and rows one after the other, whatever the file is."""

import itertools
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from everyformer.core.errors import DataError
from everyformer.core.wording import pluralise, shortened
from everyformer.data.sources import Entry, Source, reading, text_lines
from everyformer.system.plain import from_json
from sequence_laws.extras import extra_module

JSON_LINES = {".jsonl", ".ndjson"}
PARQUET = {".parquet"}
DELIMITED = {".csv", ".tsv"}
TABLES = DELIMITED | JSON_LINES | PARQUET
"""Endings of files that are tables."""
SAMPLE = 1000
"""Rows from the beginning that tell what a table holds."""
LONGEST_NAME = 40
"""Characters of a column's name in a list of all, at most; it may be a cell of a row."""
BATCH = 4096
"""Rows of Parquet in memory at a time."""


class Table(ABC):
    """One table of a source."""

    unit = "line"
    """what the numbers of rows count, in messages"""
    marked_up = False
    """True where the file, read as plain text, still is text between its delimiters"""

    def __init__(self, source: Source, entry: Entry) -> None:
        self.source, self.entry = source, entry
        self.where = source.where(entry)
        self.names: tuple[str, ...] = ()
        """of the columns, as they are written; () without a header"""
        self.width = 0
        """number of columns"""
        self.sample: list[tuple[str, ...]] = []
        """the first rows"""
        self.notes: list[str] = []
        """what is unusual, half a sentence each"""

    @abstractmethod
    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        """The number of every row and its cells in ``columns``; None where a cell is empty.

        Raises:
            DataError: a row that cannot be read, with its number.
        """

    def column(self, index: int) -> str:
        """A column in messages."""
        return f"'{self.names[index]}'" if self.names else f"column {index + 1}"

    @property
    def lower(self) -> list[str]:
        """Names of the columns in lower case."""
        return [name.lower() for name in self.names]

    @property
    def columns(self) -> str:
        """All columns in messages."""
        if not self.names:
            return f"{pluralise(self.width, 'column')} and no header"
        return f"the column{'s' * (self.width > 1)} {shown(self.names)}"

    def _sample(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take names, width and sample from the first rows, by the names of their columns."""
        if not rows:
            raise DataError(f"{self.where} holds no rows; give a table that does")
        self.names = tuple(dict.fromkeys(name for row in rows for name in row))
        self.width = len(self.names)
        self.sample = [
            tuple("" if row.get(name) is None else str(row[name]) for name in self.names)
            for row in rows
        ]


class Cells(NamedTuple):
    """Some cells of one row."""

    table: Table
    number: int
    """of the row"""
    columns: Sequence[int]
    values: Sequence[Any]

    @property
    def at(self) -> str:
        """The row in messages."""
        return f"{self.table.where}, {self.line}"

    @property
    def line(self) -> str:
        """The row in messages about its table alone."""
        return f"{self.table.unit} {self.number}"

    def column(self, index: int) -> str:
        """The column of a cell in messages."""
        return self.table.column(self.columns[index])

    def text(self, index: int) -> str:
        """A cell as text; nothing is an empty one."""
        cell = self.values[index]
        if cell is None:
            return ""
        if isinstance(cell.get("bytes") if isinstance(cell, dict) else cell, bytes):
            raise self._refused(
                index,
                "holds the bytes of a file, which are not read out of a table; save pictures as "
                "files, a folder for each class",
            )
        if not isinstance(cell, str):
            held = shortened(repr(cell), 60)
            raise self._refused(
                index, f"holds {held}, which is no text; quote it, or choose another column"
            )
        try:
            if not cell.isascii():
                cell.encode()
        except UnicodeEncodeError as error:
            words = (
                f"has half a surrogate pair ({error.reason}); mend the escapes \\ud800 to \\udfff"
            )
            raise self._refused(index, words) from error
        return cell

    def label(self, index: int) -> str:
        """A cell as the name of a class, less the space around; nothing is an empty one."""
        cell = self.values[index]
        if isinstance(cell, list | dict | bytes):
            held = shortened(repr(cell), 60)
            raise self._refused(
                index, f"holds {held}, which is no label; it must be text or a number"
            )
        if cell is None or cell != cell:  # a number that is missing is NaN in Parquet
            return ""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        return str(cell).strip()

    def group(self, index: int) -> str:
        """A cell as the name of a group, which is refused where it is empty; "" of no such cell."""
        if index < len(self.values) and not self.label(index):
            raise self._refused(index, "is empty, but `data.split` needs it of every row; fill it")
        return self.label(index) if index < len(self.values) else ""

    def _refused(self, index: int, words: str) -> DataError:
        return DataError(f"{self.at}: {self.column(index)} {words}")


class JsonTable(Table):
    """JSON lines; of objects with a ``translation``, the fields of that."""

    def __init__(self, source: Source, entry: Entry) -> None:
        super().__init__(source, entry)
        self._sample([row for _, row in itertools.islice(self.objects(), SAMPLE)])

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        names = [self.names[column] for column in columns]
        for number, row in self.objects():
            missing = [name for name in names if name not in row]
            if missing:
                raise DataError(
                    f"{self.where}, line {number}: no field '{missing[0]}', only "
                    f"{', '.join(row) or 'none at all'}; each line must have it"
                )
            yield number, [row[name] for name in names]

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and object of every line that is not blank."""
        for number, line in enumerate(text_lines(self.source, self.entry), start=1):
            if not line.strip():
                continue
            try:
                row = from_json(line)
            except ValueError as error:
                raise DataError(
                    f"{self.where}, line {number} is not JSON: {error}; write one object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{self.where}, line {number} is not a JSON object")
            inner = row.get("translation")
            yield number, inner if isinstance(inner, dict) else row


class ParquetTable(Table):
    """A Parquet file, its rows counted from 1; classes of datasets are read by their names."""

    unit = "row"

    def __init__(self, source: Source, entry: Entry) -> None:
        super().__init__(source, entry)
        with self._opened() as file:
            self._classes = _class_names(file.schema_arrow.metadata or {}, self.where)
            first = next(file.iter_batches(batch_size=SAMPLE), None)
            rows = [] if first is None else first.to_pylist()
            self._sample([{name: self._named(name, row[name]) for name in row} for row in rows])

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        names, number = [self.names[column] for column in columns], 0
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=BATCH, columns=names):
                cells = [batch.column(name).to_pylist() for name in names]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, list(map(self._named, names, row))

    def _named(self, name: str, cell: Any) -> Any:
        return self._classes[name].get(cell, cell) if name in self._classes else cell

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """The file, open for reading."""
        pyarrow = extra_module("pyarrow", "data", "reading Parquet")
        parquet = extra_module("pyarrow.parquet", "data", "reading Parquet")
        try:
            with reading(self.where), self.source.stream(self.entry) as stream:
                yield parquet.ParquetFile(stream)
        except pyarrow.ArrowException as error:
            raise DataError(f"{self.where} is not readable as Parquet: {error}") from error


def _class_names(metadata: Mapping[bytes, bytes], where: str) -> dict[str, dict[Any, str | None]]:
    """Names of each `ClassLabel`'s numbers, by column; -1 is none."""
    try:
        info = from_json(metadata.get(b"huggingface", b"{}").decode())
        features = info.get("info", {}).get("features", {})
        return {
            name: {-1: None, **dict(enumerate(told["names"]))}
            for name, told in features.items()
            if isinstance(told, dict) and told.get("_type") == "ClassLabel"
        }
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{where} keeps names of classes in an unknown form: {error}") from error


def shown(cells: Sequence[str]) -> str:
    """Cells of one row in messages."""
    return ", ".join(textwrap.shorten(cell, LONGEST_NAME) or "''" for cell in cells)
