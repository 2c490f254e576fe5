"""Tables of lines: cells with a delimiter between them, which is guessed by how evenly it
divides the lines.

CSV and TSV as people have them: commas, tabs, semicolons or bars, quotes, a byte-order mark, a
header or none. Rows are read one at a time.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from everyformer.core.errors import DataError
from everyformer.core.wording import counted
from everyformer.data.headers import finds_header
from everyformer.data.sources import Entry, Source, text_lines
from everyformer.data.table import SAMPLE, Table

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
"""Delimiter -> what messages call it; the earlier one of two that divide the lines as evenly."""
SAMPLED = 1 << 20
"""Characters from the beginning, at most, that tell the delimiter."""
LONGEST_FIELD = 1 << 30
"""Characters in one cell; Python's limit of 131,072 is below the length of long reviews."""


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
        lines, whole = _beginning(text_lines(source, entry, newline=""))
        with _long_fields():
            self.delimiter = _delimiter(lines, usual, whole)
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
        reader = csv.reader(
            text_lines(self.source, self.entry, newline=""),
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )
        first = width = number = 0
        with _long_fields():
            try:
                while True:
                    number = reader.line_num + 1
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


@contextmanager
def _long_fields() -> Iterator[None]:
    """A block in which Python's CSV reader takes long cells; the limit is the process's."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


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
