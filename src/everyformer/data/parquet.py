"""Tables in Parquet, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from everyformer.core.errors import DataError
from everyformer.data.sources import Entry, Source, reading
from everyformer.data.table import SAMPLE, Table
from everyformer.system.extras import extra_module

BATCH = 4096
"""Rows in memory at a time."""


class ParquetTable(Table):
    """A Parquet file; its rows are counted from 1."""

    unit = "row"

    def __init__(self, source: Source, entry: Entry) -> None:
        super().__init__(source, entry)
        with self._opened() as file:
            self.names = tuple(file.schema_arrow.names)
            self.width = len(self.names)
            first = next(file.iter_batches(batch_size=SAMPLE), None)
            rows = [] if first is None else first.to_pylist()
        if not rows:
            raise DataError(f"{self.where} holds no rows; give a table that does")
        self.sample = [
            tuple("" if row[name] is None else str(row[name]) for name in self.names)
            for row in rows
        ]

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, list[Any]]]:
        names, number = [self.names[column] for column in columns], 0
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=BATCH, columns=names):
                cells = [batch.column(name).to_pylist() for name in names]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, list(row)

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
