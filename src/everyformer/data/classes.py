"""Labels as classes or as numbers: which labels can be either, and their summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.rounding import shortened
from everyformer.core.wording import join_first, pluralise
from everyformer.data.config import DataConfig
from everyformer.data.headers import FEW, doubtful, is_number, number
from everyformer.data.layout import class_names
from everyformer.data.selection import held_out_draw, majority
from everyformer.data.tables import ENOUGH_ROWS, TableReader

if TYPE_CHECKING:
    from everyformer.data.kind import Kind

MOST_NUMBERS = 20
"""Different whole numbers that are taken for classes by themselves, at most."""
UNEVEN = 0.8
"""Share of the commonest class in training, above which classes are called uneven."""
SHOWN = 8
"""Classes that are counted by name, at most, and lines that are named."""


def refuse_labels(counts: Mapping[str, int], reader: TableReader, spec: str, chosen: bool) -> None:
    """Refuse a column of labels, with the rows of each, that can hardly be classes.

    ``chosen``: True where the option names it.
    """
    rows, count = sum(counts.values()), len(counts)
    table, index = reader.first, reader.indices[1]
    column = table.column(index)
    if all(map(is_number, counts)):
        whole = all(number(label).is_integer() for label in counts)
        if not whole or (count > MOST_NUMBERS and not chosen):
            option = table.names[index] if table.names else index + 1
            hint = f" (`data.label_column={option}` takes these as classes)" if whole else ""
            raise DataError(
                f"{column} of '{spec}' holds {pluralise(count, 'different number')}: predict "
                f"numbers with `task=regress`, or choose another `data.label_column`{hint}"
            )
    if rows >= ENOUGH_ROWS and count > FEW * rows:
        raise DataError(
            f"'{spec}' has {count:,} different labels in {rows:,} rows, so {column} is probably no "
            "label; choose another with `data.label_column` (pairs to translate are `task=seq2seq`)"
        )


def targets_of(
    data: Kind,
    codes: Mapping[str, int],
    labels: np.ndarray,
    held_out: np.ndarray,
    reader: TableReader | None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The class id of each row, and the classes in the order of their ids, or (rows, 1) numbers.

    Args:
        codes: each label's number. labels: (rows,) such numbers. held_out: (rows,) by the source.
        reader: what has read the labels, of a table, as its second column.
    """
    spec, classes, names = data.request.source.spec, data.request.classes, [*codes]
    if data.does.measures:
        assert reader is not None
        column = reader.first.column(reader.indices[1])
        return numbers_of(names, f"{column} of '{spec}'")[labels], ()
    if not classes:
        if reader is not None:
            counts = dict(zip(names, np.bincount(labels).tolist(), strict=True))
            refuse_labels(counts, reader, spec, data.config.label_column is not None)
        train, rest = ({names[n] for n in np.unique(labels[held_out == part])} for part in (0, 1))
        classes = class_names(train, rest, spec)
    return known_ids(names, classes, spec)[labels], classes


def known_ids(names: Sequence[str], known: Sequence[str], spec: str) -> np.ndarray:
    """(names,) the ids that a run knows labels by."""
    ids = {name: index for index, name in enumerate(known)}
    if strange := [name for name in names if name not in ids]:
        raise DataError(
            f"'{spec}' has the label{'s' * (len(strange) > 1)} {join_first(strange)}, but the "
            f"model knows {join_first(known)} alone; take such rows out or call them as the model "
            "does, or choose the column with `data.label_column`"
        )
    return np.array([ids[name] for name in names], dtype=np.int64)


def numbers_of(labels: Iterable[str], where: str) -> np.ndarray:
    """(labels, 1) of labels that are numbers, with a decimal point or a comma."""
    labels = list(labels)
    bad = [
        text
        for text in dict.fromkeys(labels)
        if not is_number(text) or not math.isfinite(number(text))
    ]
    if bad:
        listed = ", ".join(f"'{text}'" for text in bad[:SHOWN])
        raise DataError(
            f"{where} holds {listed}{' and others' if len(bad) > SHOWN else ''}, where "
            f"`task=regress` needs numbers; choose another `data.label_column`, or `task=classify`"
        )
    if (cell := doubtful(labels)) is not None:
        raise DataError(
            f"{where} holds '{cell}', which may be {cell.replace(',', '')} or "
            f"{cell.replace(',', '.')}; write the numbers of this column without marks of "
            "thousands, and decimals with a point"
        )
    return shortened(np.array([[number(text)] for text in labels]))


def refuse_unlabelled(lines: Sequence[str], count: int, where: str, what: str = "text") -> None:
    """Refuse rows without a label, if there are any."""
    if count:
        more = f" and {count - len(lines):,} more" if count > len(lines) else ""
        raise DataError(
            f"{where} has {pluralise(count, what)} without a label: {', '.join(lines)}"
            f"{more}; fill the label{'s' * (count > 1)} in, or say `data.unlabelled=skip`, which "
            "leaves such rows out (everyformer predict answers them)"
        )


def hold_out(
    labels: np.ndarray,
    classes: Sequence[str],
    config: DataConfig,
    spec: str,
    groups: np.ndarray | None = None,
    of: str = "",
) -> tuple[np.ndarray, str]:
    """Flags (rows,) of those that are drawn to be held out, and how, in words.

    Args:
        labels: (rows,) class ids, or (rows, n) numbers.
        classes: names; () where rows have none.
        groups: (rows,) of each, where rows are split by groups.
        of: what a part of is drawn where there are no classes, with a space before it.
    """
    within = " within each class" if classes else of
    if groups is None:
        held_out = held_out_draw(labels, config.validation, config.seed)
        return held_out, f"a draw of {config.validation:.0%}{within} (seed {config.seed})"
    names, ids = np.unique(groups, return_inverse=True)
    held_out = held_out_draw(labels, config.validation, config.seed, ids.reshape(-1))
    column = f"'{config.group_column}'"
    if not held_out.any():
        left = "rows of its classes" if len(names) > 1 else "any"
        raise DataError(
            f"the rows of '{spec}' have {pluralise(len(names), 'value')} of {column}: none can be "
            f"held out and leave {left} to train on; choose another column with "
            f"`data.split=group`, or `data.split=random`"
        )
    taken = len(np.unique(ids[held_out]))
    words = (
        f"a draw of {taken:,} of the {len(names):,} values of {column} with all of their rows, "
        f"{held_out.mean():.0%} (seed {config.seed})"
    )
    held = {*labels[held_out].tolist()} if classes else set()
    if lacking := [f"'{name}'" for number, name in enumerate(classes) if number not in held]:
        words += (
            f"; no row of the class{'es' * (len(lacking) > 1)} {join_first(lacking, SHOWN)} is "
            "held out: of one in a single value all are trained on, of others a larger "
            "`data.validation` draws some"
        )
    return held_out, words


def refuse_groups(config: DataConfig, why: str) -> None:
    """Refuse a split by groups, if one is requested."""
    if config.group_column is not None:
        raise ConfigError(
            f"`data.split` {' '.join(config.split)} cannot be had: {why}; leave it out"
        )


def describe(
    labels: np.ndarray, held_out: np.ndarray, classes: Sequence[str], what: str = "texts"
) -> str:
    """Summary of labels, ended by a semicolon; empty where nothing is predicted of a row.

    Args:
        labels: (rows,) class ids, or (rows, n) numbers.
        held_out: (rows,) flags.
        classes: names; () of numbers, and where no class is predicted.
        what: what rows are called, as many.
    """
    train, validation = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if labels.ndim > 1:
        return f"{_numbers(labels, train, validation, what)}; "
    return f"{_classes(labels, train, validation, classes, what)}; " if classes else ""


def _numbers(numbers: np.ndarray, train: np.ndarray, validation: np.ndarray, what: str) -> str:
    """Rows, the range of their numbers (rows, n), and how far off always answering the means is,
    if any are trained on."""
    count = numbers.shape[1]
    width, largest = float(np.ptp(numbers)), float(np.abs(numbers).max())
    # as many as tell ends apart that lie close, as far from 0 as they are
    digits = 6 + max(0, math.ceil(math.log10(largest / width)) - 2 if width else 0)
    several = ("numbers", "mean", "an RMSE")
    if count > 1:
        several = (f"{count:,} numbers each", "means", "RMSEs")
    note = (
        f"{len(numbers):,} {what} with {several[0]} from {numbers.min():.{digits}g} to "
        f"{numbers.max():.{digits}g}"
    )
    if not len(train):
        return note
    means = numbers[train].mean(0, dtype=np.float64)
    off = np.sqrt(np.square(numbers[validation] - means).mean(0, dtype=np.float64))
    listed, errors = (
        ", ".join(f"{value:.{n}g}" for value in values[:SHOWN]) + " ..." * (count > SHOWN)
        for values, n in ((means, digits - 2), (off, 4))
    )
    return (
        f"{note}; always answering their {several[1]} {listed} has {several[2]} of {errors} over "
        "those held out"
    )


def _classes(
    labels: np.ndarray, train: np.ndarray, validation: np.ndarray, classes: Sequence[str], what: str
) -> str:
    """Rows, classes with their counts, and what always giving the same answer would reach."""
    counts = np.bincount(labels, minlength=len(classes))
    order = np.argsort(-counts, kind="stable").tolist()
    parts = [f"{classes[index]} ({counts[index]:,})" for index in order[:SHOWN]]
    if len(order) > SHOWN:
        parts.append(f"and {len(order) - SHOWN:,} more")
    note = f"{len(labels):,} {what} of {len(classes):,} classes: {', '.join(parts)}"
    if len(train) and len(validation):
        answer, accuracy = majority(labels, train, validation)
        note += (
            f"; always answering '{classes[answer]}' is right for {accuracy:.1%} of those held out"
        )
    if len(train) and np.bincount(labels[train]).max() > UNEVEN * len(train):
        note += " (--class-weights balanced lets rare classes count as much in training)"
    return note
