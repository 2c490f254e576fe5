"""Labels of pictures: classes by their folders, or classes or numbers by a table among them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import Task
from everyformer.core.wording import join_names, pluralise
from everyformer.data.classes import SHOWN, refuse_groups, refuse_unlabelled, targets_of
from everyformer.data.config import DataConfig
from everyformer.data.headers import FILES
from everyformer.data.kind import Kind
from everyformer.data.layout import SourceLayout, class_entries, find_layout, without_notes
from everyformer.data.sources import Entry, Source
from everyformer.data.table import TABLES, Table
from everyformer.data.tables import (
    LABEL,
    NUMBER,
    TableReader,
    names_labels,
    open_table,
    require,
    with_group,
)

METADATA, FILES_NAMED = "metadata", "file_name"
"""what a table is called that is meant among others, and its column of pictures"""
TOP = PurePosixPath()


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
    table = open_table(source, config, tables[0])
    labelled = names_labels(table) and _file_column(table) is not None
    return "classify-image" if labelled else "pixels"


def labelled_pictures(data: Kind, pictures: Sequence[Entry]) -> LabelledPictures:
    """The classes or numbers of pictures that their task needs.

    A table is read where numbers are predicted, where --data.label-column chooses of it, and where
    classes are needed that folders do not show (one folder alone shows none).
    """
    source, config, task = data.request.source, data.config, data.does
    layout = find_layout(pictures, config.part)
    check_labels(config, task)
    needed = task.answers or config.labels
    if config.label_column is not None and not needed:
        raise ConfigError(
            f"`data.label_column` has no meaning for the task {task.name}, unless "
            "`data.labels` tells the model what each picture shows; leave it out, or classify or "
            "regress"
        )
    tables = tables_among(source)
    if task.measures and not tables:
        raise DataError(
            f"'{source.spec}' holds pictures without numbers, which the task {task.name} learns; "
            f"put a table beside them ({METADATA}.csv: a column file_name, and one of numbers for "
            "`data.label_column`), or give both as arrays in an .npz (images and y)"
        )
    folders = {entry.parts[0] for entry in layout.train if len(entry.parts) > 1}
    by_table = config.label_column is not None or task.measures or len(folders) < 2
    if needed and by_table and tables:
        return _by_table(data, pictures, tables)
    refuse_groups(config, f"no table is read of '{source.spec}'")
    data.refuse(("header", "separator"), f"'{source.spec}'", ", of which no table is read")
    notes: list[str] = []
    if needed:
        layout, loose = class_entries(source, layout)
        if loose:
            notes.append(f"{loose:,} pictures outside the class folders left aside")
    others = {entry.name for entry in without_notes(source.entries)} - {p.name for p in pictures}
    if others:
        verb = "is no picture" if len(others) == 1 else "are no pictures"
        notes.append(f"{pluralise(len(others), 'file')} that {verb} left aside")
    if not needed:
        return LabelledPictures(layout, np.zeros(len(layout.entries), np.int64), (), notes)
    shown = [entry.parts[0] for entry in layout.entries]
    return LabelledPictures(layout, *_targets(data, shown, layout, None), notes)


def check_labels(config: DataConfig, task: Task) -> None:
    """Refuse ``labels`` as an input of a classifier, which predicts them."""
    if config.labels and task.answers:
        raise ConfigError(
            "`data.labels` tells a model the class of each picture that it draws; a classifier is "
            "to find it: leave it out, or take `task=pixels`"
        )


def _by_table(data: Kind, pictures: Sequence[Entry], tables: Sequence[Entry]) -> LabelledPictures:
    """Classes or numbers by a table; pictures that it does not name are left aside."""
    source, config = data.request.source, data.config
    folders = {PurePosixPath(entry.name).parent for entry in tables}
    alike = {PurePosixPath(entry.name).name for entry in tables}
    if len(folders) < len(tables) or len(alike) > 1:
        called = ", ".join(entry.name for entry in tables[:SHOWN])
        raise DataError(
            f"'{source.spec}' has {len(tables)} tables beside its pictures, {called}: call the one "
            f"that is meant {METADATA}{tables[0].suffix}, or leave only that"
        )
    table = open_table(source, config, tables[0])
    files = _file_column(table)
    if files is None:
        raise DataError(
            f"{table.where} has {table.columns}, and none of them names the pictures in "
            f"'{source.spec}'; give a column {FILES_NAMED} with their paths"
        )
    role = NUMBER if data.does.measures else LABEL
    label = role.find(table, config, files)
    # the other of two columns
    [label] = require(table, {role: 1 - files if label is None and table.width == 2 else label})
    if label == files:
        raise ConfigError(
            f"{table.column(files)} of {table.where} names the pictures; choose another column "
            f"with {role.flag}"
        )
    columns = with_group(table, config, (files, label))
    reader = TableReader(source, config, table, columns, ("pictures", "label"))
    names = dict.fromkeys(entry.name for entry in pictures)
    labels, group_of, empty = _table_labels(reader, tables, names)
    notes = list(reader.notes)
    aside = [entry.name for entry in pictures if entry.name not in labels]
    if config.unlabelled == "refuse":
        refuse_unlabelled(empty[:SHOWN], len(empty), f"'{source.spec}'", "picture")
    elif empty:
        labels = {name: label for name, label in labels.items() if label}
        notes.append(f"{len(empty):,} without a label left out")
    if aside:
        more = " ..." if len(aside) > 3 else ""
        notes.append(
            f"{pluralise(len(aside), 'picture')} that no row names left aside: "
            f"{', '.join(aside[:3])}{more}"
        )
    layout = find_layout([entry for entry in pictures if entry.name in labels], config.part)
    if layout.validation is not None:
        refuse_groups(config, f"'{source.spec}' is split already ({layout.note})")
    texts = [labels[entry.name] for entry in layout.entries]
    grouped = config.group_column is not None
    groups = np.array([group_of[entry.name] for entry in layout.entries]) if grouped else None
    return LabelledPictures(layout, *_targets(data, texts, layout, reader), notes, groups)


def _targets(
    data: Kind, labels: Sequence[str], layout: SourceLayout, reader: TableReader | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class ids of the layout's pictures by their labels, and the classes; or numbers."""
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    coded = np.array([codes[label] for label in labels], dtype=np.int64)
    return targets_of(data, codes, coded, np.arange(len(labels)) >= len(layout.train), reader)


def _file_column(table: Table) -> int | None:
    """The column that names pictures: ``file_name``, or the only one that is called like it."""
    known = [index for index, name in enumerate(table.lower) if name in FILES]
    known = [index for index in known if table.lower[index] == FILES_NAMED] or known
    if len(known) > 1:
        raise DataError(
            f"{table.where} has {len(known)} columns that could name the pictures, "
            f"{join_names([*map(table.column, known)])}: call the one that is meant {FILES_NAMED}"
        )
    return known[0] if known else None


def _table_labels(
    reader: TableReader, tables: Sequence[Entry], pictures: Collection[str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Labels and groups by the paths of pictures, and the places of rows with an empty label. Rows
    write a path from their table, or in the source, or a name that only one picture has.
    """
    labels: dict[str, str] = {}
    groups: dict[str, str] = {}
    lines: dict[str, str] = {}
    lost: list[str] = []
    by_name: dict[str, list[str]] = {}
    for path in pictures:
        by_name.setdefault(PurePosixPath(path).name, []).append(path)
    spec = f"'{reader.source.spec}'"
    for entry in tables:
        for row in reader.rows(entry):
            place = row.at if len(tables) > 1 else row.line
            cell = row.label(0)
            ways = (str(folder / cell) for folder in (PurePosixPath(entry.name).parent, TOP))
            fits = next(([way] for way in ways if way in pictures), by_name.get(cell, []))
            if not fits:
                lost.append(f"'{cell}' ({place})")
                continue
            if len(fits) > 1:
                several = ", ".join(fits[:SHOWN])
                raise DataError(f"{place}: '{cell}' may be {several}; write the path")
            [name] = fits
            if name in labels:
                raise DataError(
                    f"{place} names the picture '{name}' again, which {lines[name]} has named "
                    "before; leave one of the rows"
                )
            labels[name], lines[name], groups[name] = row.label(1), place, row.group(2)
    if lost:
        more = f" and {len(lost) - SHOWN:,} more" if len(lost) > SHOWN else ""
        raise DataError(
            f"{pluralise(len(lost), 'row')} of the table name{'s' * (len(lost) == 1)} "
            f"no picture in {spec}: {', '.join(lost[:SHOWN])}{more}; add such pictures "
            "or remove such rows"
        )
    return labels, groups, [lines[name] for name, label in labels.items() if not label]
