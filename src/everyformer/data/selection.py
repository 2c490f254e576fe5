"""Selection of rows: of a step, of a limited validation, for the held-out part."""

from functools import lru_cache

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.batch import WHOLE, Portion


def spread(count: int, limit: int | None) -> np.ndarray:
    """Indices of all ``count`` sequences, or of ``limit`` of them at equal distances."""
    if limit is not None and limit < 1:
        raise ConfigError(f"the limit of validation sequences must be at least 1, not {limit}")
    if limit is None or limit >= count:
        return np.arange(count)
    return (2 * np.arange(limit) + 1) * count // (2 * limit)


def epoch_rows(
    rows: np.ndarray, step: int, size: int, seed: int, portion: Portion = WHOLE
) -> np.ndarray:
    """The ``portion``'s rows of step ``step`` when every epoch is a fresh shuffle of ``rows``.

    A batch that reaches past the end of an epoch takes its rest from the next, so all are full.
    """
    if len(rows) == 0:
        raise DataError("everything is held out (`data.validation=1`), so there is no training")
    positions = step * size + np.arange(*portion.of(size))
    epochs = positions // len(rows)
    picked = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        order = _shuffle(len(rows), seed, int(epoch))
        picked[inside] = rows[order[positions[inside] % len(rows)]]
    return picked


class Draws:
    """Random numbers for a ``portion`` of a batch's ``rows``, as they would be in the whole one.

    The generator skips those of other rows, so that nothing of them is made.
    """

    def __init__(self, key: tuple[int, ...], rows: int = 1, portion: Portion = WHOLE) -> None:
        self._bits = np.random.PCG64(key)
        self._rows, (self._start, self._stop) = rows, portion.of(rows)

    def uniform(self, columns: int) -> np.ndarray:
        """The next (own rows, columns) numbers in [0, 1), one step of the generator each."""
        self._bits.advance(self._start * columns)
        result = np.random.Generator(self._bits).random((self._stop - self._start, columns))
        self._bits.advance((self._rows - self._stop) * columns)
        return result


@lru_cache(maxsize=2)
def _shuffle(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def held_out_draw(
    labels: np.ndarray, fraction: float, seed: int, groups: np.ndarray | None = None
) -> np.ndarray:
    """(rows,) flags of a seeded draw of ``fraction`` of every class; of numbers, of all rows.

    A class of two or more keeps at least one on either side; ``fraction`` 1 takes all.

    Args:
        labels: (rows,) class ids, or (rows, n) numbers.
        groups: (rows,) ids of groups that are drawn as wholes instead: those that fit in their
            order, else the smallest, but never the last rows of a class.
    """
    drawn = np.full(len(labels), fraction == 1)
    if fraction == 1:
        return drawn
    classes = labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)
    if groups is not None:
        return _whole_groups(classes, fraction, seed, groups)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        order = np.random.default_rng((seed, int(label))).permutation(len(members))
        drawn[members[order[:count]]] = True
    return drawn


def _whole_groups(
    classes: np.ndarray, fraction: float, seed: int, groups: np.ndarray
) -> np.ndarray:
    """Flags of groups that together are about ``fraction`` of the rows; none where all groups hold
    the last rows of a class."""
    drawn, left = np.zeros(len(classes), dtype=bool), np.bincount(classes)
    ends = np.cumsum(np.bincount(groups))
    every = np.split(np.argsort(groups, kind="stable"), ends[:-1])
    order = [every[index] for index in np.random.default_rng(seed).permutation(len(every))]
    room = round(fraction * len(classes))

    def take(rows: np.ndarray) -> bool:
        taken, counts = np.unique(classes[rows], return_counts=True)
        if np.any(left[taken] <= counts):
            return False
        left[taken] -= counts
        drawn[rows] = True
        return True

    for rows in order:
        if len(rows) <= room and take(rows):
            room -= len(rows)
    if not drawn.any():
        next(filter(take, sorted(order, key=len)), None)
    return drawn


def told_copies(
    hashes: np.ndarray, held_out: np.ndarray, what: str, remedy: str = "take them out"
) -> str:
    """Remark on rows that are held out and trained on too, behind a semicolon; empty without any.

    Args:
        hashes: (rows,) of their inputs. held_out: (rows,) flags.
        what: what rows are called, as many. remedy: what to do about copies.
    """
    copied = int(np.isin(hashes[held_out], hashes[~held_out]).sum())
    if not copied:
        return ""
    return (
        f"; {copied:,} of {int(held_out.sum()):,} held-out {what} also stand in training: measures "
        f"are partly of memory; {remedy}"
    )


def majority(labels: np.ndarray, train: np.ndarray, validation: np.ndarray) -> tuple[int, float]:
    """The commonest class of the training rows, or else of all, and its share of validation."""
    answer = int(np.bincount(labels[train] if len(train) else labels).argmax())
    return answer, float((labels[validation] == answer).mean())
