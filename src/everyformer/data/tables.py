"""The tables of a source, and the columns that are read of them: chosen by options, known by their
names, or, of two columns, told by what stands in them. What is not told apart is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from everyformer.core.errors import ConfigError, DataError, nearest
from everyformer.data.config import DataConfig
from everyformer.data.delimited import DelimitedTable
from everyformer.data.headers import FEW, is_number
from everyformer.data.names import FIELDS, LABELS, LANGUAGES, TEXTS, two_languages
from everyformer.data.parquet import ParquetTable
from everyformer.data.records import JsonTable
from everyformer.data.sources import Entry, Source
from everyformer.data.table import JSON_LINES, PARQUET, Table

ENOUGH_ROWS = 20
"""Rows from which on a column of many values is taken for no label, whatever its values."""


@dataclass(frozen=True)
class Columns:
    """Columns of one table, and what there is to say of them."""

    indices: tuple[int, ...]
    notes: tuple[str, ...]
    """half a sentence each"""


class TableReader:
    """Reads the same columns of every table of a source."""

    def __init__(self, source: Source, config: DataConfig, first: Table, columns: Columns) -> None:
        self.source, self.config, self.first = source, config, first
        self.indices = columns.indices
        self.notes = (*columns.notes, *first.notes)

    def rows(self, entry: Entry) -> Iterator[tuple[Table, Sequence[int], int, list[Any]]]:
        """The table, the columns, and of every row its number and its cells in the columns.

        Raises:
            DataError: a row that cannot be read, or a table without the columns of the first.
        """
        table, indices = self._same(entry)
        for number, cells in table.rows(indices):
            yield table, indices, number, cells

    def _same(self, entry: Entry) -> tuple[Table, Sequence[int]]:
        """The table of an entry, and where it has the columns of the first."""
        first = self.first
        if entry.name == first.entry.name:
            return first, self.indices
        wanted = [first.names[index] for index in self.indices] if first.names else []
        table = _open(self.source, entry, self.config.header if wanted else "no", wanted)
        if not wanted:
            if table.width != first.width:
                raise DataError(
                    f"{table.where} has {table.width} columns, {first.where} has {first.width}; "
                    "the tables of one source must be alike"
                )
            return table, self.indices
        names = _lower(table)
        missing = [name for name in wanted if name.lower() not in names]
        if missing:
            raise DataError(
                f"{table.where} has no column '{missing[0]}', which {first.where} has, but "
                f"{table.columns}; the tables of one source must be alike"
            )
        return table, [names.index(name.lower()) for name in wanted]


def labelled_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reads text and label, by the columns of ``entry``'s table.

    Raises:
        ConfigError: an option names no column; two columns could be meant, or none.
    """
    table = open_table(source, config, entry)
    return TableReader(source, config, table, labelled_columns(table, config))


def text_reader(source: Source, config: DataConfig, entry: Entry) -> TableReader:
    """Reads text alone, likewise."""
    table = open_table(source, config, entry)
    text = _chosen(table, config, "text_column")
    if text is None:
        text = _obvious(table, TEXTS, "text_column")
    if text is None and table.width == 1:
        text = 0
    if text is None:
        raise _none_fits(table, "a text (text, sentence, review ...)", "text_column")
    return TableReader(source, config, table, Columns((text,), (_says(table, "text", text),)))


def pair_reader(
    source: Source, config: DataConfig, entry: Entry, languages: tuple[str, str] | None
) -> tuple[TableReader, tuple[str, str]]:
    """Reads source and target, likewise; and what the two sides are called."""
    table = open_table(source, config, entry)
    names = _lower(table)
    first, second = (_chosen(table, config, name) for name in ("source_column", "target_column"))
    if first is None and second is None and (sides := _sides(table, languages)) is not None:
        first, second = sides
        called = names[first], names[second]
        return TableReader(source, config, table, Columns(sides, ())), languages or called
    if table.width == 2:
        first = first if first is not None else 0 if second is None else 1 - second
        second = second if second is not None else 1 - first
    if first is None or second is None:
        raise ConfigError(
            f"{table.where} has {table.columns}, and pairs have a source and a target; choose both "
            "with --data.source-column and --data.target-column"
        )
    if first == second:
        raise ConfigError(f"source and target are both {table.column(first)} of {table.where}")
    notes = [_says(table, "source", first), _says(table, "target", second)]
    called = (names[first], names[second]) if names else FIELDS
    reader = TableReader(source, config, table, Columns((first, second), (", ".join(notes),)))
    return reader, languages or called


def labelled_columns(table: Table, config: DataConfig) -> Columns:
    """Text and label: chosen, obvious, or of two columns told by their values.

    Raises:
        ConfigError: an option names no column; two columns could be meant, or none.
    """
    text, label = (_chosen(table, config, name) for name in ("text_column", "label_column"))
    if table.width < 2:
        raise DataError(
            f"{table.where} has {table.columns}; to classify takes two, a text and a label, and "
            "to learn the text itself takes --task lm --data.text-column 1"
        )
    if label is None:
        label = _obvious(table, LABELS, "label_column", text)
    if text is None:
        text = _obvious(table, TEXTS, "text_column", label)
    if table.width == 2 and (text is None or label is None):
        if text is None and label is None:
            label = _likely_label(table)
        text = 1 - label if text is None and label is not None else text
        label = 1 - text if label is None and text is not None else label
    if label is None:
        raise _none_fits(table, "a label (label, class, category ...)", "label_column")
    if text is None:
        raise _none_fits(table, "a text (text, sentence, review ...)", "text_column")
    if text == label:
        raise ConfigError(
            f"text and label are both {table.column(text)} of {table.where}; choose two columns "
            "with --data.text-column and --data.label-column"
        )
    return Columns(
        (text, label), (f"{_says(table, 'text', text)}, {_says(table, 'label', label)}",)
    )


def named_columns(table: Table, config: DataConfig, files: int, wanted: str) -> Columns:
    """Names of files, in a column that is known, and label: chosen, obvious, or the other of two.

    ``wanted``: what a label is, for messages.

    Raises:
        ConfigError: an option names no column, or that of the files; several could be meant, or
            none.
    """
    label = _chosen(table, config, "label_column")
    if label is None:
        label = _obvious(table, LABELS, "label_column", files)
    if label is None and table.width == 2:
        label = 1 - files
    if label is None:
        raise _none_fits(table, wanted, "label_column")
    if label == files:
        raise ConfigError(
            f"{table.column(label)} of {table.where} names the pictures; choose another column "
            "with --data.label-column"
        )
    return Columns(
        (files, label), (f"{_says(table, 'pictures', files)}, {_says(table, 'label', label)}",)
    )


def names_labels(table: Table) -> bool:
    """Whether a column is called like a label."""
    return not LABELS.isdisjoint(_lower(table))


def holds_few(table: Table, index: int) -> bool:
    """Whether a column's values come again, as classes do."""
    values = [row[index].strip() for row in table.sample]
    return len(values) < ENOUGH_ROWS or len(set(values)) <= FEW * len(values)


def names_sides(table: Table, languages: tuple[str, str] | None = None) -> bool:
    """Whether the header of a table says that it holds pairs."""
    return _sides(table, languages) is not None and TEXTS.isdisjoint(_lower(table))


def holds_two_texts(table: Table) -> bool:
    """Whether both of two columns are texts, of many words and hardly any twice."""
    if table.width != 2 or names_labels(table) or not table.sample:
        return False
    for cells in zip(*table.sample, strict=True):
        filled = [cell.strip() for cell in cells if cell.strip()]
        words = sum(len(cell.split()) for cell in filled)
        if len(set(filled)) <= FEW * len(filled) or all(map(is_number, filled)):
            return False
        if words < 2 * len(filled) and len(filled) < ENOUGH_ROWS:
            return False
    return True


def open_table(source: Source, config: DataConfig, entry: Entry) -> Table:
    """The table of an entry, with the header that the options ask for or name."""
    given = [value for name, value in config.columns.items() if name != "header" and value]
    wanted = [value for value in given if not value.isdecimal()]
    return _open(source, entry, config.header, wanted)


def _open(source: Source, entry: Entry, header: str, wanted: Sequence[str]) -> Table:
    if entry.suffix in JSON_LINES:
        return JsonTable(source, entry)
    if entry.suffix in PARQUET:
        return ParquetTable(source, entry)
    return DelimitedTable(source, entry, header, wanted)


def _lower(table: Table) -> list[str]:
    return [name.lower() for name in table.names]


def _flag(option: str) -> str:
    return f"--data.{option.replace('_', '-')}"


def _chosen(table: Table, config: DataConfig, option: str) -> int | None:
    """The column that an option names, by its name or else its number; None where it is unset."""
    value = config.columns[option]
    if value is None:
        return None
    found = [index for index, name in enumerate(_lower(table)) if name == value.strip().lower()]
    if len(found) > 1:
        raise ConfigError(
            f"{table.where} has {len(found)} columns called '{value}'; give {_flag(option)} the "
            f"number of one: {' or '.join(str(index + 1) for index in found)}"
        )
    if found:
        return found[0]
    if value.isdecimal() and 1 <= int(value) <= table.width:
        return int(value) - 1
    hint = nearest(value.lower(), _lower(table)) if table.names else "number them from 1"
    if hint.startswith("known: "):
        hint = "name one of them, or number them from 1"
    raise ConfigError(
        f"{table.where} has no column '{value}' for {_flag(option)}, but {table.columns}; {hint}"
    )


def _obvious(
    table: Table, known: frozenset[str], option: str, taken: int | None = None
) -> int | None:
    """The only column, but ``taken``, that is called like what an option stands for.

    Raises:
        ConfigError: there are several.
    """
    names = _lower(table)
    found = [i for i, name in enumerate(names) if name in known and i != taken]
    if len(found) > 1:
        several = ", ".join(table.column(index) for index in found[:-1])
        what = option.removesuffix("_column")
        raise ConfigError(
            f"{table.where} has {len(found)} columns that could be the {what}, {several} and "
            f"{table.column(found[-1])}; choose with {_flag(option)} {table.names[found[0]]} or "
            f"another"
        )
    return found[0] if found else None


def _likely_label(table: Table) -> int:
    """Of two columns the one of numbers, else of fewer values, else of shorter ones, else the
    second."""
    first, second = (
        (not all(map(is_number, filter(None, cells))), len(set(cells)), sum(map(len, cells)))
        for cells in zip(*table.sample, strict=True)
    )
    return 0 if first < second else 1


def _sides(table: Table, languages: tuple[str, str] | None) -> tuple[int, int] | None:
    """Where a header names both sides: as ``languages``, source and target, or two languages."""
    names = _lower(table)
    for wanted in (languages, FIELDS):
        if wanted is not None and all(name in names for name in wanted):
            return names.index(wanted[0]), names.index(wanted[1])
    coded = [index for index, name in enumerate(names) if name in LANGUAGES]
    if two_languages(names) or len(coded) == 2 == len({names[index] for index in coded}):
        found = coded if len(coded) == 2 else [0, 1]
        return (found[0], found[1]) if languages is None else None
    return None


def _says(table: Table, what: str, index: int) -> str:
    return f"{what} from {table.column(index)}"


def _none_fits(table: Table, what: str, option: str) -> ConfigError:
    return ConfigError(
        f"{table.where} has {table.columns}, and none is called like {what}; choose it with "
        f"{_flag(option)} {'NAME' if table.names else 'NUMBER, from 1'}"
    )
