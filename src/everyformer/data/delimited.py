"""CSV and TSV: what divides cells, and whether the first line names them.

    separator   is --data.separator; a first line sep=; ; tabs of a .tsv; or what alone divides the
                first line
    header      is --data.header; or the first line where it has the column of an option, a known
                name, or a word above numbers (`is_header`)

What none of these tells is requested, never guessed.
"""

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from everyformer.core.errors import DataError
from everyformer.core.wording import join_names, pluralise
from everyformer.data.config import DataConfig
from everyformer.data.headers import KNOWN, LANGUAGES, are_numbers, is_number, two_languages
from everyformer.data.sources import Entry, Source, text_lines
from everyformer.data.table import SAMPLE, Table, shown

DECLARED = re.compile(r'"?sep=([,;|\t])"?\s*$')
"""a line before all others that says what divides cells, as spreadsheets write it"""
SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|"}
"""Values of --data.separator."""
# one cell; Python's limit of 131,072 characters, the process's, is below that of long reviews
csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))


class DelimitedTable(Table):
    """CSV or TSV."""

    marked_up = True

    def __init__(self, source: Source, entry: Entry, config: DataConfig) -> None:
        """Raises `DataError`: the first rows cannot be read, or do not tell what is to be known."""
        super().__init__(source, entry)
        lines = [*itertools.islice(text_lines(source, entry, newline=""), SAMPLE)]
        declared = DECLARED.match(lines[0]) if lines else None
        self._skipped = int(declared is not None)
        usual = "\t" if entry.suffix == ".tsv" else ","
        self.delimiter = SEPARATORS.get(config.separator) or (
            declared[1] if declared else _separator(lines, usual, self.where)
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
                    f"({shown(rows[0])}) names the columns: say `data.header=yes`, or no where "
                    "it is a row"
                )
        if self._header:
            self.names = tuple(name.strip() for name in rows[0])
        self.sample = rows[self._header :]
        if not self.sample:
            raise DataError(f"{self.where} has a header ({shown(rows[0])}) and no rows; give some")

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
                        f"{self.where}, line {number} has {pluralise(len(row), 'column')} between "
                        f"{self._separator}, line {first} has {width}; quote cells that "
                        "have separators or line ends in them, or say another `data.separator`"
                    )
                yield number, row
        except csv.Error as error:
            raise DataError(
                f"{self.where}, line {number}: the quotes are not as in a CSV ({error}); a quote "
                "that opens a cell must close it, and quotes inside are written twice"
            ) from error


def is_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """True where the first row of a table names its columns for certain; else it may be a row.

    It has a known name that does not come again below it (a word that is a language only with
    another), or a word above numbers, and no number above numbers.
    """
    names = [cell.strip().lower() for cell in first]
    if two_languages(names):
        return True
    columns = [
        [cell.strip().lower() for cell in cells if cell.strip()]
        for cells in (zip(*below, strict=True) if below else [()] * len(names))
    ]
    known = {n for n, cells in zip(names, columns, strict=True) if n in KNOWN and n not in cells}
    numeric = [
        name for name, cells in zip(names, columns, strict=True) if cells and are_numbers(cells)
    ]
    if any(map(is_number, numeric)):
        return False
    return len(known) > 1 or not known <= LANGUAGES or any(numeric)


def _separator(lines: list[str], usual: str, where: str) -> str:
    """The only separator of the first line, or tabs of a .tsv; ``usual`` of one column."""

    def divides(separator: str) -> bool:
        return len(next(filter(None, csv.reader(lines, delimiter=separator)), [])) > 1

    if any("\0" in line for line in lines):
        raise DataError(
            f"{where} has NUL bytes, as files that are no text have, and UTF-16 without its mark; "
            "give text, or say `data.encoding=utf-16-le`"
        )
    found = [name for name, separator in SEPARATORS.items() if divides(separator)]
    if len(found) > 1 and not (usual == "\t" and "tab" in found):
        raise DataError(
            f"the first line of {where} may be divided by "
            f"{join_names([f'{name}s' for name in found], 'or')}: say which with "
            f"`data.separator={' or '.join(found)}`, or quote cells that have them in them"
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
