"""Selection of rows: of a step, of a limited validation, for the held-out part."""

from functools import lru_cache

import numpy as np

from everyformer.core.errors import ConfigError, DataError


def spread(count: int, limit: int | None) -> np.ndarray:
    """Indices of all ``count`` sequences, or of ``limit`` of them at equal distances."""
    if limit is not None and limit < 1:
        raise ConfigError(f"the limit of validation sequences must be at least 1, not {limit}")
    if limit is None or limit >= count:
        return np.arange(count)
    return (2 * np.arange(limit) + 1) * count // (2 * limit)


def epoch_rows(rows: np.ndarray, step: int, size: int, seed: int) -> np.ndarray:
    """The rows of step ``step`` when every epoch is a fresh shuffle of ``rows``.

    A batch that reaches past the end of an epoch takes its rest from the next, so all are full.
    """
    if len(rows) == 0:
        raise DataError("everything is held out (--data.validation 1), so there is no training")
    positions = np.arange(step * size, (step + 1) * size)
    epochs = positions // len(rows)
    picked = np.empty(size, dtype=np.int64)
    for epoch in np.unique(epochs):
        inside = epochs == epoch
        picked[inside] = rows[_shuffle(len(rows), seed, int(epoch))[positions[inside] % len(rows)]]
    return picked


@lru_cache(maxsize=4)
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


def majority(labels: np.ndarray, train: np.ndarray, validation: np.ndarray) -> tuple[int, float]:
    """The commonest class of the training rows, or else of all, and its share of validation."""
    answer = int(np.bincount(labels[train] if len(train) else labels).argmax())
    return answer, float((labels[validation] == answer).mean())
