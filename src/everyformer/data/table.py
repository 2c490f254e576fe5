"""Tables: names of columns and rows one after the other, whatever the file is.

CSV and TSV as people have them: commas, tabs, semicolons or bars, quotes, a byte-order mark, any
encoding, a header or none; JSON lines; Parquet. Rows are read one at a time.
"""

import csv
import itertools
import re
import textwrap
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from everyformer.core.errors import DataError
from everyformer.core.wording import counted, shortened
from everyformer.data.headers import finds_header
from everyformer.data.sources import Entry, Source, reading, text_lines
from everyformer.system.plain import from_json
from sequence_laws.extras import extra_module

JSON_LINES = {".jsonl", ".ndjson"}
PARQUET = {".parquet"}
DELIMITED = {".csv", ".tsv"}
SAID = re.compile(r'"?sep=([,;|\t])"?\s*$')
"""a line before all others that says what divides cells, as spreadsheets write it"""
TABLES = DELIMITED | JSON_LINES | PARQUET
"""Endings of files that are tables."""
SAMPLE = 1000
"""Rows from the beginning that tell what a table holds."""
LONGEST_NAME = 40
"""Characters of a column's name in a list of all, at most; a row may be taken for a header."""
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
"""Delimiter -> what messages call it; the earlier one of two that divide the lines as evenly."""
SAMPLED = 1 << 20
"""Characters from the beginning, at most, that tell the delimiter."""
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
        """what was read or guessed, half a sentence each"""

    @abstractmethod
    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        """The number of every row and its cells in ``columns``; None where a cell is empty.

        Raises:
            DataError: a row that cannot be read, with its number.
        """

    def at(self, number: int) -> str:
        """A row in messages."""
        return f"{self.where}, {self.unit} {number}"

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
        names = ", ".join(textwrap.shorten(name, LONGEST_NAME) or "''" for name in self.names)
        return f"the column{'s' * (self.width > 1)} {names}"

    def text(self, number: int, index: int, cell: Any) -> str:
        """A cell as text; nothing is an empty one.

        Raises:
            DataError: it is a number, a list ..., or half a surrogate pair.
        """
        if cell is None:
            return ""
        held = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(held, bytes):
            raise DataError(
                f"{self.at(number)}: {self.column(index)} holds the bytes of a file, which are not "
                "read out of a table; save pictures as files, a folder for each class"
            )
        if not isinstance(cell, str):
            raise DataError(
                f"{self.at(number)}: {self.column(index)} holds {shortened(repr(cell), 60)}, which "
                "is no text; quote it, or choose another column"
            )
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{self.at(number)}: {self.column(index)} has half a surrogate pair "
                    f"({error.reason}); mend the escapes \\ud800 to \\udfff"
                ) from error
        return cell

    def label(self, number: int, index: int, cell: Any) -> str:
        """A cell as the name of a class, less the space around; nothing is an empty one.

        Raises:
            DataError: it is a list or has fields.
        """
        if isinstance(cell, list | dict | bytes):
            raise DataError(
                f"{self.at(number)}: {self.column(index)} holds {shortened(repr(cell), 60)}, which "
                "is no label; it must be text or a number"
            )
        if cell is None or cell != cell:  # a number that is missing is NaN in Parquet
            return ""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        return str(cell).strip()

    def group(self, number: int, index: int, cell: Any) -> str:
        """A cell as the name of a group.

        Raises:
            DataError: it is empty, a list or has fields.
        """
        if name := self.label(number, index, cell):
            return name
        raise DataError(
            f"{self.at(number)}: {self.column(index)} is empty, but --data.split group needs it of "
            "every row; fill it"
        )

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


class DelimitedTable(Table):
    """CSV or TSV."""

    marked_up = True

    def __init__(
        self, source: Source, entry: Entry, header: str = "auto", names: Sequence[str] = ()
    ) -> None:
        """``header``: yes, no or auto; ``names``: columns that its header has for certain.

        Raises:
            DataError: the first rows cannot be read.
        """
        super().__init__(source, entry)
        usual = "\t" if entry.suffix == ".tsv" else ","
        lines, whole = _beginning(text_lines(source, entry, newline="", guess=True))
        said = SAID.match(lines[0]) if lines else None
        self._skipped = int(said is not None)
        self.delimiter = said[1] if said else _delimiter(lines, usual, whole)
        self.quoted = self.delimiter != "\t" or _quotes_in_tabs(lines)
        if self.delimiter != usual:
            self.notes.append(f"cells are divided by {DELIMITERS[self.delimiter]}")
        records = list(itertools.islice(self._records(), SAMPLE + 1))
        if not records:
            raise DataError(f"{self.where} is empty; give rows with text")
        first = records[0][1]
        self.width, rows = len(first), [tuple(row) for _, row in records]
        self._has_header = header == "yes"
        if header == "auto":
            self._has_header, known = finds_header(rows[0], rows[1:], names)
            if self._has_header and not known:
                self.notes.append(
                    f"the first line is taken for a header ({', '.join(first)}), and "
                    "--data.header no makes it a row"
                )
            elif not known and len(rows) > 1:
                self.notes.append("no line is taken for a header, and --data.header yes makes one")
        if self._has_header:
            self.names = tuple(name.strip() for name in first)
        self.sample = rows[1:] if self._has_header else rows
        if not self.sample:
            raise DataError(
                f"{self.where} has a header ({', '.join(first)}) and no rows; give some"
            )

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        for number, row in itertools.islice(self._records(), int(self._has_header), None):
            yield number, [row[column] for column in columns]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The line where each row begins, and its cells; blank lines are passed over."""
        lines = text_lines(self.source, self.entry, newline="", guess=True)
        reader = csv.reader(
            itertools.islice(lines, self._skipped, None),
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
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
                        f"{self.at(number)} has {counted(len(row), 'column')} "
                        f"between {DELIMITERS[self.delimiter]}, line {first} has {width}; "
                        "quote cells that have delimiters or line ends in them"
                    )
                yield number, row
        except csv.Error as error:
            raise DataError(
                f"{self.at(number)}: the quotes are not as in a CSV ({error}); a quote that "
                "opens a cell must close it, and quotes inside are written twice"
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
                    f"{self.at(number)}: no field '{missing[0]}', only "
                    f"{', '.join(row) or 'none at all'}; each line must have it"
                )
            yield number, [row[name] for name in names]

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and object of every line that is not blank."""
        lines = text_lines(self.source, self.entry, guess=True)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = from_json(line)
            except ValueError as error:
                raise DataError(
                    f"{self.at(number)} is not JSON: {error}; write one object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"{self.at(number)} is not a JSON object")
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


def read_table(source: Source, entry: Entry, header: str, names: Sequence[str]) -> Table:
    """The table of an entry; ``header`` and ``names`` are as in `DelimitedTable`."""
    if entry.suffix in JSON_LINES:
        return JsonTable(source, entry)
    if entry.suffix in PARQUET:
        return ParquetTable(source, entry)
    return DelimitedTable(source, entry, header, names)


def _beginning(lines: Iterator[str]) -> tuple[list[str], bool]:
    """The first lines, and whether they are all."""
    first, size = [], 0
    for line in lines:
        first.append(line)
        size += len(line)
        if len(first) >= SAMPLE or size >= SAMPLED:
            return first, False
    return first, True


def _delimiter(lines: list[str], usual: str, whole: bool) -> str:
    """The delimiter that gives most rows the same number of cells, more than one.

    `csv.Sniffer` takes the apostrophes of plain English for quotes: of 700 KB of reviews it says
    "," whatever divides their cells, after a minute.
    """

    def evenness(delimiter: str) -> float:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        if not whole and len(rows) > 1:
            del rows[-1]  # which may go on
        cells, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        return count / len(rows) if cells > 1 else 0.0

    return max((usual, *DELIMITERS), key=evenness)


def _quotes_in_tabs(lines: list[str]) -> bool:
    """True where quotes enclose cells between tabs, rather than being text, as in corpora of pairs.

    They do where they need to: around tabs, line ends and doubled quotes, or around every cell.
    """
    try:
        rows = [row for row in csv.reader(lines, delimiter="\t", strict=True) if row]
    except csv.Error:
        return False
    if any(mark in cell for row in rows for cell in row for mark in "\t\n\r"):
        return True
    raw = [cell for line in lines for cell in line.rstrip("\r\n").split("\t") if cell]
    enclosed = [cell for cell in raw if len(cell) > 1 and cell[0] == cell[-1] == '"']
    doubled = any('""' in cell[1:-1] for cell in enclosed)
    return bool(enclosed) and (doubled or len(enclosed) == len(raw))
