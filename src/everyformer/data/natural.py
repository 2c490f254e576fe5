"""The natural task of a text or a table, where none is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from everyformer.core.errors import DataError
from everyformer.core.tasks import LM, MLM, SEQ2SEQ, TASKS, TEXT
from everyformer.data.config import DataConfig
from everyformer.data.layout import find_layout, without_notes
from everyformer.data.pairs import holds_parallel
from everyformer.data.sources import Source
from everyformer.data.table import TABLES, Table
from everyformer.data.tables import (
    holds_few,
    holds_two_texts,
    labelled_columns,
    names_labels,
    open_table,
)

T = TypeVar("T", bound=str)


def natural_task(source: Source, config: DataConfig, able: Sequence[str]) -> str:
    """The first task of those that a text serves which is among ``able``.

    Raises:
        DataError: a table that may be pairs or labelled texts, and nothing says which.
    """
    entries = without_notes(source.entries)
    plain = (LM, MLM)
    if all(entry.suffix in TABLES for entry in entries):
        if first_served((TEXT, SEQ2SEQ, *plain), able) in plain and config.label_column is None:
            return first_served(plain, able)
        if holds_parallel(source, config):
            return first_served((SEQ2SEQ, *plain), able)
        table = open_table(source, config, find_layout(entries, config.part).train[0])
        return _of_table(table, config, able)
    if holds_parallel(source, config):
        return first_served((SEQ2SEQ, *plain), able)
    return first_served((TEXT, *plain) if _holds_class_folders(source) else plain, able)


def first_served(served: Sequence[T], able: Sequence[str]) -> T:
    """The first task of ``served`` that the model has; its very first where it has none."""
    return next((task for task in served if task in able), served[0])


def _of_table(table: Table, config: DataConfig, able: Sequence[str]) -> str:
    """The natural task of a table whose header names no two sides."""
    chosen = config.text_column is not None or config.label_column is not None
    pairs = table.width == 2 and not chosen
    if pairs and not names_labels(table) and all(TASKS[task].encodes for task in able):
        return SEQ2SEQ
    if pairs and holds_two_texts(table):
        first, second = table.names or ("1", "2")
        raise DataError(
            f"{table.where} has two columns of text"
            + (f" ({first}, {second})" if table.names else " and no header")
            + f": pairs to translate take --task {SEQ2SEQ} (with --data.source-column {first} "
            f"--data.target-column {second}), a label takes --data.label-column {second}, and to "
            f"learn a text itself takes --task lm --data.text-column {first}"
        )
    if all(TASKS[task].encodes for task in able):
        raise DataError(
            f"{table.where} has {table.columns}, and a member that only translates takes pairs: "
            "choose their columns with --data.source-column and --data.target-column"
        )
    if config.label_column is not None:
        # a model without this task is refused by name
        return TEXT
    return first_served((TEXT, LM, MLM) if _holds_labels(table, config) else (LM, MLM), able)


def _holds_labels(table: Table, config: DataConfig) -> bool:
    """True where a table shows labels by its names and values.

    A CSV that shows none is taken to have some, so that the user is asked for their column, unless
    its text column is chosen or it has no other.
    """
    if names_labels(table):
        return True
    if table.width == 2 and table.sample:
        _, label = labelled_columns(table, config)
        if holds_few(table, label):
            return True
    return table.marked_up and table.width > 1 and config.text_column is None


def _holds_class_folders(source: Source) -> bool:
    """True where a source is .txt files in folders, two or more in each of two or more."""
    layout = find_layout(source.entries)
    if any(len(e.parts) != 2 or e.suffix != ".txt" for e in layout.entries):
        return False
    counts = Counter(entry.parts[0] for entry in layout.train)
    return len(counts) > 1 and min(counts.values()) > 1
