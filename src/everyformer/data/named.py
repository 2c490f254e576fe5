"""Pictures with a table that names them: which table, which of its columns, which picture a row
means, and the label of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from everyformer.core.errors import DataError
from everyformer.core.wording import counted
from everyformer.data.classes import SHOWN, refuse_unlabelled
from everyformer.data.config import DataConfig
from everyformer.data.names import FILES
from everyformer.data.sources import Entry, Source
from everyformer.data.table import TABLES, Table
from everyformer.data.tables import Role, TableReader, names_labels, open_table, picture_reader

METADATA = "metadata"
"""what a table is called that is meant among others"""


@dataclass(frozen=True)
class NamedPictures:
    """The pictures that a table names, with their labels."""

    labels: dict[str, str]
    """by the pictures' names in the source"""
    reader: TableReader
    """of file names and labels"""
    notes: tuple[str, ...]
    """half a sentence each: which columns are read, what is left aside"""


class PictureNames:
    """The pictures of a source by what tables call them."""

    def __init__(self, pictures: Sequence[Entry]) -> None:
        self.whole = {entry.name: entry for entry in pictures}
        self.ends: dict[str, list[Entry]] = defaultdict(list)
        """by the last parts of a path, with the file's ending and without"""
        for entry in pictures:
            path = PurePosixPath(entry.name)
            for form in (path, path.with_suffix("")):
                for first in range(len(form.parts)):
                    self.ends["/".join(form.parts[first:])].append(entry)

    def find(self, cell: str, table: Entry) -> list[Entry]:
        """The pictures that a cell may mean: by their path from the table, else in the source,
        else by the end of their path."""
        name = str(PurePosixPath(cell.strip().replace("\\", "/")))
        near = str(PurePosixPath(table.name).parent / name)
        for path in (near, name):
            if path in self.whole:
                return [self.whole[path]]
        return self.ends.get(name, [])


def tables_beside(source: Source) -> list[Entry]:
    """The tables of a source of pictures: those called metadata, or else all."""
    tables = [entry for entry in source.entries if entry.suffix in TABLES]
    return [e for e in tables if PurePosixPath(e.name).stem.lower() == METADATA] or tables


def table_labels_pictures(source: Source, config: DataConfig, pictures: Sequence[Entry]) -> bool:
    """True where a single table among pictures shows by itself that it has labels for them."""
    tables = tables_beside(source)
    if len(tables) != 1:
        return False
    table, names = open_table(source, config, tables[0]), PictureNames(pictures)
    return names_labels(table) and _file_column(table, names)[1] > 0


def named_pictures(
    source: Source, config: DataConfig, pictures: Sequence[Entry], role: Role
) -> NamedPictures:
    """The labels of pictures by the table among them.

    Args:
        role: of the column of labels.

    Raises:
        ConfigError: an option names no column; several could be meant, or none.
        DataError: several tables; no column of file names; rows whose picture is missing, may be
            one of several or was named before; rows without a label.
    """
    names, tables = PictureNames(pictures), tables_beside(source)
    folders = {PurePosixPath(entry.name).parent for entry in tables}
    alike = {PurePosixPath(entry.name).name for entry in tables}
    if len(folders) < len(tables) or len(alike) > 1:
        listed = ", ".join(entry.name for entry in tables[:SHOWN])
        raise DataError(
            f"'{source.spec}' has {len(tables)} tables beside its pictures, {listed}: call the one "
            f"that is meant {METADATA}{tables[0].suffix}, or leave only that"
        )
    table = open_table(source, config, tables[0])
    files, fitting = _file_column(table, names)
    if files is None:
        raise DataError(
            f"{table.where} has {table.columns}, and none of them names the pictures in "
            f"'{source.spec}'; give a column file_name with their paths"
        )
    known = bool(table.names) and table.names[files].lower() in FILES
    reader = picture_reader(source, config, table, files, role)
    labels, empty = _labels(reader, tables, names, source)
    notes = list(reader.notes)
    if not known and fitting:
        notes.append(f"{table.column(files)} holds the names of pictures")
    aside = [entry.name for entry in pictures if entry.name not in labels]
    if config.unlabelled == "refuse":
        refuse_unlabelled(empty[:SHOWN], len(empty), f"'{source.spec}'", "picture")
    elif empty:
        labels = {name: label for name, label in labels.items() if label}
        notes.append(f"{len(empty):,} without a label left out")
    if aside:
        more = " ..." if len(aside) > 3 else ""
        notes.append(
            f"{counted(len(aside), 'picture')} that no row names left aside: "
            f"{', '.join(aside[:3])}{more}"
        )
    return NamedPictures(labels, reader, tuple(notes))


def _file_column(table: Table, names: PictureNames) -> tuple[int | None, int]:
    """The column that names pictures, and how many of the first rows' cells there are names.

    That with most of them; of none, the first that is called like one of file names.
    """
    called = [name.lower() in FILES for name in table.names] or [False] * table.width
    counts = [
        sum(bool(cell.strip() and names.find(cell, table.entry)) for cell in cells)
        for cells in zip(*table.sample, strict=True)
    ]
    best = max(range(table.width), key=lambda index: (counts[index], called[index], -index))
    if counts[best] or called[best]:
        return best, counts[best]
    return None, 0


def _labels(
    reader: TableReader, tables: Sequence[Entry], names: PictureNames, source: Source
) -> tuple[dict[str, str], list[str]]:
    """The label of every picture that a row names, and the places of rows with an empty one."""
    labels: dict[str, str] = {}
    lines: dict[str, str] = {}
    lost: list[str] = []
    empty: list[str] = []
    for place, cell, label, entry in _rows(reader, tables):
        meant = names.find(cell, entry) if cell else []
        if not meant:
            lost.append(f"'{cell}' ({place})")
            continue
        if len(meant) > 1:
            several = ", ".join(entry.name for entry in meant[:SHOWN])
            raise DataError(f"{place}: '{cell}' may be {several}; write the path")
        name = meant[0].name
        if name in labels:
            raise DataError(
                f"{place} names the picture '{name}' again, which {lines[name]} has named before; "
                "leave one of the rows"
            )
        if not label:
            empty.append(place)
        labels[name], lines[name] = label, place
    if lost:
        more = f" and {len(lost) - SHOWN:,} more" if len(lost) > SHOWN else ""
        raise DataError(
            f"{counted(len(lost), 'row')} of the table name{'s' * (len(lost) == 1)} "
            f"no picture in '{source.spec}': {', '.join(lost[:SHOWN])}{more}; add such pictures "
            "or remove such rows"
        )
    return labels, empty


def _rows(reader: TableReader, tables: Sequence[Entry]) -> Iterator[tuple[str, str, str, Entry]]:
    """Place of every row in messages, its two cells as text, and its table's entry."""
    for entry in tables:
        for table, (first, second), number, cells in reader.rows(entry):
            place = table.at(number) if len(tables) > 1 else f"{table.unit} {number}"
            name = table.label(number, first, cells[0])
            yield place, name, table.label(number, second, cells[1]), entry
