"""Labels of pictures: classes by their folders, or classes or numbers by a table among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import Task
from everyformer.core.wording import counted
from everyformer.data.classes import (
    SHOWN,
    classes_of,
    numbers_of,
    refuse_groups,
    refuse_unlabelled,
)
from everyformer.data.config import DataConfig
from everyformer.data.headers import FILES
from everyformer.data.kind import refuse
from everyformer.data.layout import SourceLayout, class_entries, find_layout, without_notes
from everyformer.data.sources import Entry, Source
from everyformer.data.table import TABLES, Table
from everyformer.data.tables import (
    LABEL,
    NUMBER,
    TableReader,
    names_labels,
    open_table,
    picture_reader,
)

METADATA = "metadata"
"""what a table is called that is meant among others"""


@dataclass(frozen=True)
class LabelledPictures:
    """Pictures with what is known of each, those for training first."""

    layout: SourceLayout
    labels: np.ndarray
    """(pictures,) class ids, zeros without classes; or (pictures, 1) numbers"""
    classes: tuple[str, ...]
    notes: Sequence[str] = ()
    """half a sentence each, on what was read and left aside"""
    groups: np.ndarray | None = None
    """(pictures,) of each picture, where pictures are split by groups"""


class PictureNames(dict[str, list[str]]):
    """The names of pictures by the ends of their paths, with the file's ending and without."""

    def __init__(self, pictures: Sequence[Entry]) -> None:
        super().__init__()
        self.whole = {entry.name for entry in pictures}
        for entry in pictures:
            path = PurePosixPath(entry.name)
            for parts in (path.parts, path.with_suffix("").parts):
                for first in range(len(parts)):
                    self.setdefault("/".join(parts[first:]), []).append(entry.name)

    def find(self, cell: str, table: Entry) -> list[str]:
        """Those that a cell may mean: by the path from the table, else in the source, else by the
        end of the path."""
        name = str(PurePosixPath(cell.strip().replace("\\", "/")))
        near = str(PurePosixPath(table.name).parent / name)
        return next(([path] for path in (near, name) if path in self.whole), self.get(name, []))


def tables_among(source: Source) -> list[Entry]:
    """The tables of a source of pictures: those called metadata, or else all."""
    tables = [entry for entry in source.entries if entry.suffix in TABLES]
    return [e for e in tables if PurePosixPath(e.name).stem.lower() == METADATA] or tables


def natural_task(source: Source, config: DataConfig, pictures: Sequence[Entry]) -> str:
    """To classify, where folders or a single table show classes, else to draw."""
    if config.labels:
        return "pixels"
    train = find_layout(pictures, config.part).train
    if config.label_column is not None or any(len(entry.parts) > 1 for entry in train):
        return "classify-image"
    tables = tables_among(source)
    if len(tables) != 1:
        return "pixels"
    table, names = open_table(source, config, tables[0]), PictureNames(pictures)
    labelled = names_labels(table) and _file_column(table, names)[1] > 0
    return "classify-image" if labelled else "pixels"


def labelled_pictures(
    source: Source,
    config: DataConfig,
    pictures: Sequence[Entry],
    task: Task,
    known: Sequence[str] = (),
) -> LabelledPictures:
    """The classes or numbers of pictures that ``task`` needs.

    A table is read where numbers are predicted, where --data.label-column chooses of it, and where
    classes are needed that folders do not show (one folder alone shows none). ``known``: classes of
    a run, of which there may be some alone.

    Raises:
        ConfigError: ``labels`` for a classifier; options of tables where none is read; columns.
        DataError: no classes or numbers where they are needed, or not such; a table that does not
            fit the pictures.
    """
    layout = find_layout(pictures, config.part)
    check_labels(config, task)
    needed = task.answers or config.labels
    if config.label_column is not None and not needed:
        raise ConfigError(
            f"--data.label-column has no meaning for the task {task.name}, unless "
            "--data.labels tells the model what each picture shows; leave it out, or classify or "
            "regress"
        )
    tables = tables_among(source)
    if task.measures and not tables:
        raise DataError(
            f"'{source.spec}' holds pictures without numbers, which the task {task.name} learns; "
            f"put a table beside them ({METADATA}.csv: a column file_name, and one of numbers for "
            "--data.label-column), or give both as arrays in an .npz (images and y)"
        )
    folders = {entry.parts[0] for entry in layout.train if len(entry.parts) > 1}
    by_table = config.label_column is not None or task.measures or len(folders) < 2
    if needed and by_table and tables:
        return _by_table(source, config, pictures, task, known)
    refuse_groups(config, f"no table is read of '{source.spec}'")
    refuse(config, ("header", "separator"), f"'{source.spec}'", ", of which no table is read")
    notes: list[str] = []
    if needed:
        layout, loose = class_entries(source, layout)
        if loose:
            notes.append(f"{loose:,} pictures outside the class folders left aside")
    others = {entry.name for entry in without_notes(source.entries)} - {p.name for p in pictures}
    if others:
        verb = "is no picture" if len(others) == 1 else "are no pictures"
        notes.append(f"{counted(len(others), 'file')} that {verb} left aside")
    if not needed:
        return LabelledPictures(layout, np.zeros(len(layout.entries), np.int64), (), notes)
    shown = [entry.parts[0] for entry in layout.entries]
    return LabelledPictures(layout, *_classes(shown, layout, None, source, config, known), notes)


def check_labels(config: DataConfig, task: Task) -> None:
    """Refuse ``labels`` as an input of a classifier, which predicts them."""
    if config.labels and task.answers:
        raise ConfigError(
            "'data.labels' tells a model the class of each picture that it draws; a classifier is "
            "to find it: leave it out, or take --task pixels"
        )


def _by_table(
    source: Source,
    config: DataConfig,
    pictures: Sequence[Entry],
    task: Task,
    known: Sequence[str] = (),
) -> LabelledPictures:
    """Classes or numbers by a table; pictures that it does not name are left aside."""
    names, tables = PictureNames(pictures), tables_among(source)
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
    measures = task.measures
    reader = picture_reader(source, config, table, files, NUMBER if measures else LABEL)
    labels, group_of, empty = _table_labels(reader, tables, names)
    notes = list(reader.notes)
    if fitting and not (table.names and table.names[files].lower() in FILES):
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
    layout = find_layout([entry for entry in pictures if entry.name in labels], config.part)
    if layout.validation is not None:
        refuse_groups(config, f"'{source.spec}' is split already ({layout.note})")
    texts = [labels[entry.name] for entry in layout.entries]
    grouped = config.group_column is not None
    groups = np.array([group_of[entry.name] for entry in layout.entries]) if grouped else None
    if measures:
        column = table.column(reader.indices[1])
        numbers = numbers_of(texts, f"{column} of {table.where}")
        return LabelledPictures(layout, numbers, (), notes, groups)
    ids = _classes(texts, layout, reader, source, config, known)
    return LabelledPictures(layout, *ids, notes, groups)


def _classes(
    labels: Sequence[str],
    layout: SourceLayout,
    reader: TableReader | None,
    source: Source,
    config: DataConfig,
    known: Sequence[str],
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class ids of the layout's pictures by their labels, and the names of the classes."""
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    coded = np.array([codes[label] for label in labels], dtype=np.int64)
    held_out = np.arange(len(labels)) >= len(layout.train)
    sure = config.label_column is not None
    ids, classes = classes_of(codes, coded, held_out, reader, source.spec, sure, known)
    return ids, tuple(classes)


def _file_column(table: Table, names: PictureNames) -> tuple[int | None, int]:
    """The column that names pictures, and how many of the first rows' cells there are names.

    That with most of them; of none, the first that is called like one of file names.
    """
    found = [
        (sum(bool(cell.strip() and names.find(cell, table.entry)) for cell in cells), name in FILES)
        for cells, name in zip(
            zip(*table.sample, strict=True), table.lower or [""] * table.width, strict=True
        )
    ]
    best = max(found)
    return (found.index(best), best[0]) if any(best) else (None, 0)


def _table_labels(
    reader: TableReader, tables: Sequence[Entry], names: PictureNames
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Labels and groups by the names of pictures in the source, and the places of rows with an
    empty label.

    Raises:
        DataError: rows whose picture is missing, may be one of several or was named before.
    """
    labels: dict[str, str] = {}
    groups: dict[str, str] = {}
    lines: dict[str, str] = {}
    lost: list[str] = []
    spec = f"'{reader.source.spec}'"
    for entry in tables:
        for row in reader.rows(entry):
            place = row.at if len(tables) > 1 else row.line
            cell = row.label(0)
            pictures = names.find(cell, entry) if cell else []
            if not pictures:
                lost.append(f"'{cell}' ({place})")
                continue
            if len(pictures) > 1:
                several = ", ".join(pictures[:SHOWN])
                raise DataError(f"{place}: '{cell}' may be {several}; write the path")
            [name] = pictures
            if name in labels:
                raise DataError(
                    f"{place} names the picture '{name}' again, which {lines[name]} has named "
                    "before; leave one of the rows"
                )
            labels[name], lines[name], groups[name] = row.label(1), place, row.group(2)
    if lost:
        more = f" and {len(lost) - SHOWN:,} more" if len(lost) > SHOWN else ""
        raise DataError(
            f"{counted(len(lost), 'row')} of the table name{'s' * (len(lost) == 1)} "
            f"no picture in {spec}: {', '.join(lost[:SHOWN])}{more}; add such pictures "
            "or remove such rows"
        )
    return labels, groups, [lines[name] for name, label in labels.items() if not label]
