"""Labels of pictures: classes by their folders, or classes or numbers by a table among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import TASKS, TaskName
from everyformer.data.classes import classes_of, numbers_of
from everyformer.data.config import DataConfig
from everyformer.data.layout import (
    SourceLayout,
    class_entries,
    find_layout,
    without_notes,
)  # fmt: skip
from everyformer.data.named import (
    METADATA,
    named_pictures,
    table_labels_pictures,
    tables_beside,
)
from everyformer.data.sources import Entry, Source
from everyformer.data.tables import LABEL, NUMBER, TableReader


@dataclass(frozen=True)
class LabelledPictures:
    """Pictures with what is known of each, those for training first."""

    layout: SourceLayout
    labels: np.ndarray
    """(pictures,) class ids, zeros without classes; or (pictures, 1) float32 numbers"""
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """half a sentence each, on what was read and left aside"""


def natural_task(source: Source, config: DataConfig, pictures: Sequence[Entry]) -> TaskName:
    """To classify, where folders or a table show classes, else to draw."""
    if config.labels:
        return "pixels"
    train = find_layout(pictures, config.part).train
    labelled = config.label_column is not None or any(len(entry.parts) > 1 for entry in train)
    if labelled or table_labels_pictures(source, config, pictures):
        return "classify-image"
    return "pixels"


def labelled_pictures(
    source: Source, config: DataConfig, pictures: Sequence[Entry], task: TaskName
) -> LabelledPictures:
    """The classes or numbers of pictures that ``task`` needs.

    A table is read where numbers are predicted, where --data.label-column chooses of it, and where
    classes are needed that folders do not show (one folder alone shows none).

    Raises:
        ConfigError: ``labels`` for a classifier; options of tables where none is read; columns.
        DataError: no classes or numbers where they are needed, or not such.
    """
    layout = find_layout(pictures, config.part)
    check_labels(config, task)
    needed = TASKS[task].answers or config.labels
    if config.label_column is not None and not needed:
        raise ConfigError(
            f"--data.label-column has no meaning for the task {task}, unless --data.labels tells "
            "the model what each picture shows; leave it out, or classify or regress"
        )
    tables = tables_beside(source)
    if TASKS[task].measures and not tables:
        raise DataError(
            f"'{source.spec}' holds pictures without numbers, which the task {task} learns; put "
            f"a table beside them ({METADATA}.csv: a column file_name, and one of numbers for "
            "--data.label-column), or give both as arrays in an .npz (images and y)"
        )
    several = len({entry.parts[0] for entry in layout.train if len(entry.parts) > 1}) > 1
    by_table = config.label_column is not None or TASKS[task].measures or not several
    if needed and by_table and tables:
        return _by_table(source, config, pictures, task)
    if config.header != "auto":
        raise ConfigError(
            f"--data.header has no meaning for '{source.spec}', of which no table is read"
        )
    notes: list[str] = []
    if needed:
        layout, loose = class_entries(source, layout)
        if loose:
            notes.append(f"{loose:,} pictures outside the class folders left aside")
    others = {entry.name for entry in without_notes(source.entries)} - {p.name for p in pictures}
    if len(others) == 1:
        notes.append("1 file that is no picture left aside")
    elif others:
        notes.append(f"{len(others):,} files that are no pictures left aside")
    if needed:
        folders = [entry.parts[0] for entry in layout.entries]
        labels, classes = _classes(folders, layout, None, source, config)
        return LabelledPictures(layout, labels, classes, tuple(notes))
    return LabelledPictures(layout, np.zeros(len(layout.entries), np.int64), (), tuple(notes))


def check_labels(config: DataConfig, task: str) -> None:
    """Refuse ``labels`` as an input of a classifier, which predicts them."""
    if config.labels and TASKS[task].answers:
        raise ConfigError(
            "'data.labels' tells a model the class of each picture that it draws; a classifier is "
            "to find it: leave it out, or take --task pixels"
        )


def _by_table(
    source: Source, config: DataConfig, pictures: Sequence[Entry], task: TaskName
) -> LabelledPictures:
    """Classes or numbers by a table; pictures that it does not name are left aside."""
    measures = TASKS[task].measures
    named = named_pictures(source, config, pictures, NUMBER if measures else LABEL)
    layout = find_layout([entry for entry in pictures if entry.name in named.labels], config.part)
    texts = [named.labels[entry.name] for entry in layout.entries]
    if measures:
        reader = named.reader
        column = reader.first.column(reader.indices[1])
        numbers = numbers_of(texts, f"{column} of {reader.first.where}")[:, None]
        return LabelledPictures(layout, numbers, (), named.notes)
    labels, classes = _classes(texts, layout, named.reader, source, config)
    return LabelledPictures(layout, labels, classes, named.notes)


def _classes(
    labels: Sequence[str],
    layout: SourceLayout,
    reader: TableReader | None,
    source: Source,
    config: DataConfig,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class ids of the layout's pictures by their labels, and the names of the classes."""
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    coded = np.array([codes[label] for label in labels], dtype=np.int64)
    held_out = np.arange(len(labels)) >= len(layout.train)
    sure = config.label_column is not None
    ids, classes = classes_of(codes, coded, held_out, reader, source.spec, sure)
    return ids, tuple(classes)
