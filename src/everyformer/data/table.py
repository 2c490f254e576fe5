"""`Table`: names of columns and rows one after the other, whatever the file is."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from everyformer.core.errors import DataError
from everyformer.core.wording import counted
from everyformer.data.sources import Entry, Source

JSON_LINES = {".jsonl", ".ndjson"}
PARQUET = {".parquet"}
DELIMITED = {".csv", ".tsv"}
TABLES = DELIMITED | JSON_LINES | PARQUET
"""Endings of files that are tables."""
SAMPLE = 1000
"""Rows from the beginning that tell what a table holds."""
LONGEST_NAME = 40
"""Characters of a column's name in a list of all, at most; a row may be taken for a header."""


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
        if not isinstance(cell, str):
            raise DataError(
                f"{self.at(number)}: {self.column(index)} holds {cell!r}, which is no text; quote "
                "it, or choose another column"
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
        if isinstance(cell, list | dict):
            raise DataError(
                f"{self.at(number)}: {self.column(index)} holds {cell!r}, which is no label; it "
                "must be text or a number"
            )
        if cell is None or cell != cell:  # a number that is missing is NaN in Parquet
            return ""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        return str(cell).strip()
