"""Tables: names of columns and rows one after the other, whatever the file is.

JSON lines and Parquet say what they are. Of CSV and TSV

    separator   is --data.separator; a first line sep=; ; tabs of a .tsv; or what alone divides the
                first line
    header      is --data.header; or the first line where it has the column of an option, a known
                name, or a word above numbers (`is_header`)

and what none of these tells is asked, never guessed. Rows are read one at a time.
"""

import csv
import itertools
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from everyformer.core.errors import DataError
from everyformer.core.wording import counted, listed, shortened
from everyformer.data.config import DataConfig
from everyformer.data.headers import is_header
from everyformer.data.sources import Entry, Source, reading, text_lines
from everyformer.system.extras import extra_module
from everyformer.system.plain import from_json

JSON_LINES = {".jsonl", ".ndjson"}
PARQUET = {".parquet"}
DELIMITED = {".csv", ".tsv"}
TABLES = DELIMITED | JSON_LINES | PARQUET
"""Endings of files that are tables."""
SAID = re.compile(r'"?sep=([,;|\t])"?\s*$')
"""a line before all others that says what divides cells, as spreadsheets write it"""
SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|"}
"""Values of --data.separator."""
SAMPLE = 1000
"""Rows from the beginning that tell what a table holds."""
LONGEST_NAME = 40
"""Characters of a column's name in a list of all, at most; a row may be taken for a header."""
BATCH = 4096
"""Rows of Parquet in memory at a time."""
# one cell; Python's limit of 131,072 characters, the process's, is below that of long reviews
csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))


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
            return f"{counted(self.width, 'column')} and no header"
        return f"the column{'s' * (self.width > 1)} {_shown(self.names)}"

    def _sample(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take names, width and sample from the first rows, by the names of their columns.

        Raises:
            DataError: there are none.
        """
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
        """A cell as text; nothing is an empty one.

        Raises:
            DataError: it is a number, a list ..., or half a surrogate pair.
        """
        cell = self.values[index]
        if cell is None:
            return ""
        held = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(held, bytes):
            raise DataError(
                f"{self.at}: {self.column(index)} holds the bytes of a file, which are not read "
                "out of a table; save pictures as files, a folder for each class"
            )
        if not isinstance(cell, str):
            raise DataError(
                f"{self.at}: {self.column(index)} holds {shortened(repr(cell), 60)}, which is no "
                "text; quote it, or choose another column"
            )
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{self.at}: {self.column(index)} has half a surrogate pair ({error.reason}); "
                    "mend the escapes \\ud800 to \\udfff"
                ) from error
        return cell

    def label(self, index: int) -> str:
        """A cell as the name of a class, less the space around; nothing is an empty one.

        Raises:
            DataError: it is a list or has fields.
        """
        cell = self.values[index]
        if isinstance(cell, list | dict | bytes):
            raise DataError(
                f"{self.at}: {self.column(index)} holds {shortened(repr(cell), 60)}, which is no "
                "label; it must be text or a number"
            )
        if cell is None or cell != cell:  # a number that is missing is NaN in Parquet
            return ""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        return str(cell).strip()

    def group(self, index: int) -> str:
        """A cell as the name of a group, which is refused where it is empty; "" of no such cell."""
        if index >= len(self.values):
            return ""
        if name := self.label(index):
            return name
        raise DataError(
            f"{self.at}: {self.column(index)} is empty, but --data.split needs it of every row; "
            "fill it"
        )


class DelimitedTable(Table):
    """CSV or TSV."""

    marked_up = True

    def __init__(self, source: Source, entry: Entry, config: DataConfig) -> None:
        """Raises `DataError`: the first rows cannot be read, or do not tell what is to be known."""
        super().__init__(source, entry)
        lines = [*itertools.islice(text_lines(source, entry, newline=""), SAMPLE)]
        said = SAID.match(lines[0]) if lines else None
        self._skipped = int(said is not None)
        usual = "\t" if entry.suffix == ".tsv" else ","
        self.delimiter = SEPARATORS.get(config.separator) or (
            said[1] if said else _separator(lines, usual, self.where)
        )
        self._quoted = self.delimiter != "\t" or _quotes_in_tabs(lines)
        self._separator = next(f"{n}s" for n, mark in SEPARATORS.items() if mark == self.delimiter)
        if self.delimiter != usual:
            self.notes.append(f"cells are divided by {self._separator}")
        rows = [tuple(row) for _, row in itertools.islice(self._records(), SAMPLE + 1)]
        if not rows:
            raise DataError(f"{self.where} is empty; give rows with text")
        self.width = len(rows[0])
        self._header = config.header == "yes"
        if config.header == "auto":
            options = [v for n, v in config.columns.items() if n.endswith("_column") and v]
            self._header = not all(map(str.isdecimal, options)) or is_header(rows[0], rows[1:])
            if not self._header:
                raise DataError(
                    f"nothing shows for certain whether the first line of {self.where} "
                    f"({_shown(rows[0])}) names the columns: say --data.header yes, or no where "
                    "it is a row"
                )
        if self._header:
            self.names = tuple(name.strip() for name in rows[0])
        self.sample = rows[self._header :]
        if not self.sample:
            raise DataError(f"{self.where} has a header ({_shown(rows[0])}) and no rows; give some")

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        for number, row in itertools.islice(self._records(), int(self._header), None):
            yield number, [row[column] for column in columns]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The line where each row begins, and its cells; blank lines are passed over."""
        lines = text_lines(self.source, self.entry, newline="")
        reader = csv.reader(
            itertools.islice(lines, self._skipped, None),
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self._quoted else csv.QUOTE_NONE,
            strict=True,
        )
        first = width = number = 0
        try:
            while True:
                number = self._skipped + reader.line_num + 1
                row = next(reader, None)
                if row is None:
                    return
                if len(row) <= 1 and not "".join(row).strip():
                    continue
                first, width = (first, width) if width else (number, len(row))
                if len(row) > width and not "".join(row[width:]).strip():
                    del row[width:]
                if len(row) != width:
                    raise DataError(
                        f"{self.where}, line {number} has {counted(len(row), 'column')} between "
                        f"{self._separator}, line {first} has {width}; quote cells that "
                        "have separators or line ends in them, or say another --data.separator"
                    )
                yield number, row
        except csv.Error as error:
            raise DataError(
                f"{self.where}, line {number}: the quotes are not as in a CSV ({error}); a quote "
                "that opens a cell must close it, and quotes inside are written twice"
            ) from error


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
        """The file, open for reading.

        Raises:
            MissingExtraError: pyarrow is not installed.
            DataError: it is no Parquet, or damaged.
        """
        pyarrow = extra_module("pyarrow", "data", "reading Parquet")
        parquet = extra_module("pyarrow.parquet", "data", "reading Parquet")
        try:
            with reading(self.where), self.source.stream(self.entry) as stream:
                yield parquet.ParquetFile(stream)
        except pyarrow.ArrowException as error:
            raise DataError(f"{self.where} is not readable as Parquet: {error}") from error


def _class_names(metadata: Mapping[bytes, bytes], where: str) -> dict[str, dict[Any, str | None]]:
    """What the numbers of each `ClassLabel` mean, by column; -1 is none.

    Raises:
        DataError: datasets says it otherwise.
    """
    try:
        said = from_json(metadata.get(b"huggingface", b"{}").decode())
        features = said.get("info", {}).get("features", {})
        return {
            name: {-1: None, **dict(enumerate(told["names"]))}
            for name, told in features.items()
            if isinstance(told, dict) and told.get("_type") == "ClassLabel"
        }
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{where} keeps names of classes in an unknown form: {error}") from error


def open_table(source: Source, config: DataConfig, entry: Entry) -> Table:
    """The table of an entry, as the options say that it is to be read."""
    if entry.suffix in JSON_LINES:
        return JsonTable(source, entry)
    if entry.suffix in PARQUET:
        return ParquetTable(source, entry)
    return DelimitedTable(source, entry, config)


def _separator(lines: list[str], usual: str, where: str) -> str:
    """The only separator that divides the first line, or tabs of a .tsv; ``usual`` of one column.

    Raises:
        DataError: several divide it; NUL bytes, as no text has them.
    """

    def divides(separator: str) -> bool:
        return len(next(filter(None, csv.reader(lines, delimiter=separator)), [])) > 1

    if any("\0" in line for line in lines):
        raise DataError(
            f"{where} has NUL bytes, as files that are no text have, and UTF-16 without its mark; "
            "give text, or say --data.encoding utf-16-le"
        )
    found = [name for name, separator in SEPARATORS.items() if divides(separator)]
    if len(found) > 1 and not (usual == "\t" and "tab" in found):
        raise DataError(
            f"the first line of {where} may be divided by "
            f"{listed([f'{name}s' for name in found], 'or')}: say which with "
            f"--data.separator {' or '.join(found)}, or quote cells that have them in them"
        )
    return SEPARATORS[found[0]] if len(found) == 1 else usual


def _quotes_in_tabs(lines: list[str]) -> bool:
    """True where quotes enclose cells between tabs, rather than being text, as in corpora of pairs:
    around a tab, a line end or a doubled quote, or around every cell."""
    raw = [cell for line in lines for cell in line.rstrip("\r\n").split("\t") if cell]
    enclosed = [cell[1:-1] for cell in raw if len(cell) > 1 and cell[0] == cell[-1] == '"']
    if enclosed and (len(enclosed) == len(raw) or any('""' in cell for cell in enclosed)):
        return True
    try:
        rows = [*csv.reader(lines, delimiter="\t", strict=True)]
    except csv.Error:
        return False
    return any(mark in cell for row in rows for cell in row for mark in "\t\n\r")


def _shown(cells: Sequence[str]) -> str:
    """Cells of one row in messages."""
    return ", ".join(textwrap.shorten(cell, LONGEST_NAME) or "''" for cell in cells)
