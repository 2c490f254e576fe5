"""`DatedSeries`: series of a table with a column of times, each laid on a grid of steps.

    long    time, series, value          a row for each time of each series
    wide    time, value, value ...       a row for each time, a column for each series

Further columns are covariates: known ahead (a plan, a holiday), with rows after the last value, or
seen with the value only. Gaps of the grid and empty cells are NaN. What is guessed is said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.core.wording import counted, few
from everyformer.data.config import DataConfig
from everyformer.data.dated.columns import (
    KEYS,
    TIMES,
    Columns,
    as_before,
    cell_number,
    find_columns,
    holds_numbers,
    is_empty,
    said_columns,
)
from everyformer.data.dated.times import (
    DAY,
    ONE_CLOCK,
    Step,
    Times,
    read_times,
    step_of,
    written,
)
from everyformer.data.headers import doubtful, either
from everyformer.data.layout import without_notes
from everyformer.data.sources import Source
from everyformer.data.table import TABLES, Table, read_table
from everyformer.data.tables import TableReader

SPARSE = 4
"""steps of a grid for each row, up to which a series lies on it"""


@dataclass(frozen=True, eq=False)
class DatedSeries:
    """Series one after the other."""

    names: tuple[str, ...]
    bounds: np.ndarray
    """(N + 1,) where each begins, and the end"""
    ends: np.ndarray
    """(N,) one after the last step of each that has a value; rows known ahead may follow"""
    times: np.ndarray
    """(M,) float64: seconds since 1970, or plain numbers"""
    values: np.ndarray
    """(M,) float64, NaN where there is none"""
    known: np.ndarray
    """(M, K) float64, covariates that are known ahead; NaN where there is none"""
    past: np.ndarray
    """(M, P) float64, covariates that come with the value; likewise"""
    covariates: tuple[str, ...]
    """names of the K and of the P"""
    step: Step
    notes: tuple[str, ...] = ()
    """what was read, guessed and left out, half a sentence each"""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """of a long table: the options that choose its columns, guessed ones too"""

    @property
    def values_at(self) -> str:
        """Their count and frequency, in words."""
        return f"{len(self.names):,} series {self.step}"


def read_series(
    source: Source, config: DataConfig, usual: Mapping[str, Any] | None = None
) -> DatedSeries:
    """The series of a source of one table, or of several that are alike.

    Args:
        usual: `Columns.options` of the table that a model was trained on.

    Raises:
        ConfigError: an option names no column; columns that could be meant are several, or none.
        DataError: no table, times that are none, a time twice in a series, values that are no
            numbers, series of one value or of different frequency.
    """
    entries = without_notes(source.entries)
    if any(entry.suffix not in TABLES for entry in entries):
        raise DataError(
            f"'{source.spec}' is no table: to forecast takes a .csv, .tsv, .jsonl or .parquet with "
            "a column of times and one or more of numbers"
        )
    said = said_columns(config).values()
    chosen = [name for names in said for name in names if not name.isdecimal()]
    first = read_table(source, entries[0], config.header, chosen)
    config = as_before(config, first, usual or {})
    columns, notes = find_columns(first, config)
    reader = TableReader(source, config, first, columns.all)
    rows: list[list[Any]] = []
    places: list[tuple[Table, int]] = []
    for entry in entries:
        for table, _, number, cells in reader.rows(entry):
            rows.append(cells)
            places.append((table, number))
    grouped = _Rows(first, columns, rows, places)
    return grouped.series([*notes, *first.notes, *source.readings])


@dataclass(eq=False)
class _Rows:
    """Rows of a table, to be grouped into series."""

    table: Table
    columns: Columns
    rows: list[list[Any]]
    """cells in the order of `Columns.all`"""
    places: list[tuple[Table, int]]

    def series(self, notes: list[str]) -> DatedSeries:
        """The series, on their grid."""
        columns, count = self.columns, len(self.columns.keys)
        times = self._times()
        notes += [times.note] if times.note else []
        numbers = self._numbers(1 + count)
        keys = ["/".join(str(cell).strip() for cell in row[1 : 1 + count]) for row in self.rows]
        groups: dict[str, list[int]] = {}
        for number, key in enumerate(keys):
            groups.setdefault(key, []).append(number)
        ordered = {key: self._in_order(key, rows, times, notes) for key, rows in groups.items()}
        step, grids = self._grids(
            {key: times.values[rows] for key, rows in ordered.items()}, times.dated, notes
        )
        step = replace(step, zoned=times.zoned)
        if step.unit == "row":
            notes.append(
                "times are irregular, so steps are counted, and not how far apart they lie (round "
                "times that are meant to be even)"
            )
        parts = list(self._parts(ordered, grids, step, times, numbers))
        bounds = np.cumsum([0, *(len(part[1]) for part in parts)])
        values = np.concatenate([part[2] for part in parts])
        ends = bounds[:-1] + [np.flatnonzero(~np.isnan(part[2]))[-1] + 1 for part in parts]
        inside = np.concatenate([np.arange(a, b) for a, b in zip(bounds[:-1], ends, strict=True)])
        if gaps := int(np.isnan(values[inside]).sum()):
            notes.append(f"{counted(gaps, 'value')} missing")
        covariates = tuple(self.table.column(i).strip("'") for i in columns.known + columns.past)
        both = np.concatenate([part[3] for part in parts])
        known = len(columns.known)
        return DatedSeries(
            names=tuple(part[0] for part in parts),
            bounds=bounds,
            ends=ends,
            times=np.concatenate([part[1] for part in parts]),
            values=values,
            known=both[:, :known],
            past=both[:, known:],
            covariates=covariates,
            step=step,
            notes=tuple(notes),
            columns=columns.options(self.table),
        )

    def _times(self) -> Times:
        cells = [row[0] for row in self.rows]
        where = self.table.column(self.columns.time)
        for (table, number), cell in zip(self.places, cells, strict=True):
            if is_empty(cell):
                raise DataError(
                    f"{table.at(number)} has no time in {where}: give it, or leave the row out"
                )
        times = read_times(cells)
        if isinstance(times, int):
            table, number = self.places[times]
            like = " like those before it" if times else ""
            raise DataError(
                f"{table.at(number)}: '{cells[times]}' in {where} is no time{like}; write all in "
                "one form, best as 2024-01-31 or 2024-01-31 12:00"
            )
        if times.mixed is not None:
            (zoned, its_line), (bare, line) = (self.places[row] for row in times.mixed)
            its, own = (cells[row] for row in times.mixed)
            raise DataError(
                f"{bare.at(line)}: '{own}' in {where} has no zone, but '{its}' "
                f"({zoned.at(its_line)}) has one; {ONE_CLOCK}"
            )
        return times

    def _numbers(self, first: int) -> np.ndarray:
        """(rows, values and covariates) of the table, NaN where a cell is empty."""
        result = np.full((len(self.rows), len(self.columns.all) - first), np.nan)
        for column in range(first, len(self.columns.all)):
            cells = [row[column] for row in self.rows]
            if (cell := doubtful(c for c in cells if isinstance(c, str))) is not None:
                table, line = self.places[[str(c).strip() for c in cells].index(cell)]
                name = table.column(self.columns.all[column])
                raise DataError(f"{table.at(line)}: '{cell}' in {name} {either(cell)}")
        for number, row in enumerate(self.rows):
            for column, cell in enumerate(row[first:]):
                if is_empty(cell):
                    continue
                value = cell_number(cell)
                if value is None or not np.isfinite(value):
                    table, line = self.places[number]
                    name = table.column(self.columns.all[first + column])
                    raise DataError(
                        f"{table.at(line)}: '{cell}' in {name} is no finite number; leave the cell "
                        "empty where there is none, and write yes and no as 1 and 0"
                    )
                result[number, column] = value
        return result

    def _in_order(self, key: str, rows: list[int], times: Times, notes: list[str]) -> np.ndarray:
        """Rows of a series by their times."""
        at = np.array(rows)
        stamps = times.values[at]
        if (np.diff(stamps) < 0).any():
            at, said = at[np.argsort(stamps, kind="stable")], "rows are put in order of time"
            stamps = times.values[at]
            notes += [said] if said not in notes else []
        if (same := np.flatnonzero(np.diff(stamps) == 0)).size:
            table, number = self.places[at[same[0] + 1]]
            of = f" of the series '{key}'" if key else ""
            more = "other columns too" if key else "the column that tells series apart"
            clocks = times.dated and bool((stamps % DAY).any())
            back = ", or, where clocks went back, write the zone behind every time (+01:00)"
            raise DataError(
                f"{table.at(number)}: the time {written(stamps[same[:1]], times.dated)[0]}{of} "
                f"comes twice; name {more} with --data.series-column, or leave one of the rows out"
                f"{back * clocks}"
            )
        return at

    def _grids(
        self, series: dict[str, np.ndarray], dated: bool, notes: list[str]
    ) -> tuple[Step, list[np.ndarray]]:
        """The step that all series have, and the numbers of theirs, from 0; rows are counted where
        there is no grid, or nearly all of it would be empty."""
        step = step_of([*series.values()], dated)
        own = {key: step_of([times], dated) for key, times in series.items() if len(times) > 2}
        if step.unit != "row":
            indices = [step.index(times) for times in series.values()]
            grids = [np.rint(index - index[0]).astype(np.int64) for index in indices]
            if sum(int(grid[-1]) + 1 for grid in grids) <= SPARSE * sum(map(len, grids)):
                same = ((key, one) for key, one in own.items() if one.unit == step.unit)
                if rare := [f"{key} ({one})" for key, one in same if one.count > step.count]:
                    notes.append(f"read {step}, with gaps between the values of {few(rare)}")
                return step, grids
        several = {str(one): key for key, one in own.items() if one.unit != "row"}
        if len(several) > 1:
            (one, first), (other, second), *_ = several.items()
            raise DataError(
                f"{self.table.where} holds series of different frequency: '{first}' is {one}, "
                f"'{second}' {other}; give those of one frequency, or sum the finer ones up"
            )
        gaps = np.concatenate([np.diff(times) for times in series.values()])
        middle = float(np.median(gaps)) if len(gaps) else 1.0
        return Step("row", middle, dated), [np.arange(len(times)) for times in series.values()]

    def _parts(
        self, ordered: dict[str, np.ndarray], grids: list[np.ndarray], step: Step,
        times: Times, numbers: np.ndarray,
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:  # fmt: skip
        """Name, times, values and covariates of every series."""
        several = len(self.columns.values)
        for (key, rows), grid in zip(ordered.items(), grids, strict=True):
            length = int(grid[-1]) + 1
            laid = np.full((length, numbers.shape[1]), np.nan)
            laid[grid] = numbers[rows]
            if step.unit == "row":
                stamps = times.values[rows]
            else:
                stamps = step.after(float(times.values[rows[0]]), np.arange(length))
            for column in range(several):
                name = self.table.column(self.columns.values[column]).strip("'")
                if key:
                    name = f"{key}/{name}" if several > 1 else key
                if (~np.isnan(laid[:, column])).sum() < 2:
                    raise DataError(
                        f"the series '{name}' of {self.table.where} has fewer than two values: "
                        "leave it out, or give more of its past"
                    )
                # a series begins with its first value, wherever others of the table begin
                first = int(np.flatnonzero(~np.isnan(laid[:, column]))[0])
                yield name, stamps[first:], laid[first:, column], laid[first:, several:]


def shows_series(source: Source, config: DataConfig) -> bool:
    """True where the header of a table names a time, and its other columns hold numbers or are
    called like what tells series apart."""
    entries = without_notes(source.entries)
    if not all(entry.suffix in TABLES for entry in entries):
        return False
    table = read_table(source, entries[0], config.header, ())
    if len([name for name in table.lower if name in TIMES]) != 1:
        return False
    rest = [index for index in range(table.width) if table.lower[index] not in TIMES]
    numbers = [index for index in rest if holds_numbers(table, index)]
    others = [index for index in rest if index not in numbers]
    time = next(index for index in range(table.width) if index not in rest)
    dated = read_times([row[time] for row in table.sample if row[time].strip()])
    named = all(table.lower[index] in KEYS for index in others)
    return bool(numbers) and named and isinstance(dated, Times)
