"""Tables in JSON lines, one object a line: its fields are the columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from everyformer.core.errors import DataError
from everyformer.data.sources import Entry, Source, text_lines
from everyformer.data.table import SAMPLE, Table
from everyformer.system.plain import from_json


class JsonTable(Table):
    """JSON lines; of objects with a ``translation``, the fields of that."""

    def __init__(self, source: Source, entry: Entry) -> None:
        super().__init__(source, entry)
        first = [row for _, row in itertools.islice(self.objects(), SAMPLE)]
        if not first:
            raise DataError(f"{self.where} holds no rows; give one object a line")
        self.names = tuple(dict.fromkeys(name for row in first for name in row))
        self.width = len(self.names)
        self.sample = [
            tuple("" if row.get(name) is None else str(row[name]) for name in self.names)
            for row in first
        ]

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
        for number, line in enumerate(text_lines(self.source, self.entry), start=1):
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
