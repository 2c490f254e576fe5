"""Columns of a table of series: which hold times, names of series, values and covariates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, DataError
from everyformer.core.wording import listed
from everyformer.data.config import DataConfig
from everyformer.data.dated.times import Times, read_times
from everyformer.data.headers import DATES, number
from everyformer.data.table import Table
from everyformer.data.tables import column_called

_TIMES = "date_time datum zeit day week month quarter year hour period dt t"
_KEYS = (
    "unique_id series series_id id item item_id store store_id sensor sensor_id device device_id "
    "station product product_id sku symbol ticker country region key group name"
)
_VALUES = "y value values target sales demand amount quantity load"
TIMES = DATES | frozenset(_TIMES.split())
"""names of columns that hold times, without doubt"""
KEYS = frozenset(_KEYS.split())
"""names of columns that tell series apart, without doubt"""
VALUES = frozenset(_VALUES.split())
"""names of columns that hold the values, without doubt"""
EMPTY = frozenset(("", "na", "n/a", "nan", "null", "none", "-", "?"))
"""cells without a number"""


@dataclass(frozen=True)
class Columns:
    """Columns of a table, counted from 0, by what they hold."""

    time: int
    keys: tuple[int, ...]
    """those that tell series apart; () in a wide table"""
    values: tuple[int, ...]
    known: tuple[int, ...]
    past: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """All that are read, in this order."""
        return (self.time, *self.keys, *self.values, *self.known, *self.past)

    def options(self, table: Table) -> dict[str, Any]:
        """The options that choose them, of a long table; a wide one may get other series."""
        if not self.keys:
            return {}
        names = table.names or [str(index + 1) for index in range(table.width)]
        return {
            "time_column": names[self.time],
            "series_column": tuple(names[index] for index in self.keys),
            "value_column": tuple(names[index] for index in self.values),
        }


def as_before(config: DataConfig, table: Table, usual: Mapping[str, Any]) -> DataConfig:
    """``config`` with `Columns.options` of another table, if this one has all of its columns, where
    nothing is said."""
    names = [n for v in usual.values() for n in ([v] if isinstance(v, str) else v)]
    if not all(name.strip().lower() in table.lower for name in names):
        return config
    unsaid = {name: value for name, value in usual.items() if not getattr(config, name)}
    return from_dict(DataConfig, {**to_dict(config), **unsaid})


def said_columns(config: DataConfig) -> dict[str, Sequence[str]]:
    """Columns that the options name."""
    return {
        "time": () if config.time_column is None else (config.time_column,),
        "series": config.series_column,
        "value": config.value_column,
        "known": config.known_column,
        "past": config.past_column,
    }


def find_columns(table: Table, config: DataConfig) -> tuple[Columns, list[str]]:
    """Columns by the options, else by names and by what stands in them; and what was guessed."""
    said = {
        role: tuple(column_called(table, name, f"--data.{role}-column") for name in names)
        for role, names in said_columns(config).items()
    }
    taken = [index for indices in said.values() for index in indices]
    if twice := [index for index in taken if taken.count(index) > 1]:
        raise ConfigError(f"{table.column(twice[0])} of {table.where} is chosen for two things")
    time = said["time"][0] if said["time"] else _time_column(table, taken)
    rest = [index for index in range(table.width) if index != time and index not in taken]
    numbers = [index for index in rest if holds_numbers(table, index)]
    keys, values = said["series"], said["value"]
    if not keys:
        named = tuple(i for i in rest if table.names and table.lower[i] in KEYS)
        words = tuple(index for index in rest if index not in numbers)
        keys = named or words
        if len(keys) > 1:
            several = " or ".join(table.column(index) for index in keys)
            raise ConfigError(
                f"{table.where}: {several} may tell the series apart; name the column, or several, "
                "with --data.series-column"
            )
    numbers = [index for index in numbers if index not in keys]
    if not values:
        called = tuple(i for i in numbers if table.names and table.lower[i] in VALUES)
        values = called[:1] if keys and len(numbers) > 1 and len(called) == 1 else tuple(numbers)
        if not values:
            raise DataError(
                f"{table.where} has {table.columns}, and none but the times holds numbers: to "
                "forecast takes some"
            )
        if keys and len(values) > 1:
            raise ConfigError(
                f"{table.where}: the series of {table.column(keys[0])} may have their values in "
                f"{' or '.join(table.column(index) for index in values)}; name the column, or "
                "several, with --data.value-column, and others with --data.known-column or "
                "--data.past-column"
            )
    parts = [f"times from {table.column(time)}"]
    parts += [f"series from {listed([table.column(i) for i in keys])}"] if keys else []
    parts += [f"values from {listed([table.column(i) for i in values])}"]
    read = {time, *taken, *keys, *values}
    aside = [table.column(index) for index in range(table.width) if index not in read]
    notes = [", ".join(parts), *([f"{listed(aside)} left aside"] if aside else [])]
    return Columns(time, keys, values, said["known"], said["past"]), notes


def _time_column(table: Table, taken: Sequence[int]) -> int:
    """The column whose name says so, else the first whose cells are dates."""
    free = [index for index in range(table.width) if index not in taken]
    named = [index for index in free if table.names and table.lower[index] in TIMES]
    for index in named or free:
        read = read_times([row[index] for row in table.sample if row[index].strip()])
        if named or (isinstance(read, Times) and read.dated):
            return index
    raise ConfigError(
        f"{table.where} has {table.columns}, and none holds dates or is called like a time (time, "
        "date, ds ...); choose it with --data.time-column, or number the rows in one"
    )


def holds_numbers(table: Table, index: int) -> bool:
    """True where the column holds numbers, and nothing but empty cells beside them."""
    cells = [row[index] for row in table.sample]
    return any(cell_number(cell) is not None for cell in cells) and all(
        cell_number(cell) is not None or is_empty(cell) for cell in cells
    )


def is_empty(cell: Any) -> bool:
    """True of a cell without a number."""
    return cell is None or str(cell).strip().lower() in EMPTY


def cell_number(cell: Any) -> float | None:
    """A cell's number, with a point or a comma; None where it is none."""
    if isinstance(cell, bool | int | float):
        return float(cell)
    try:
        return number(str(cell))
    except ValueError:
        return None
