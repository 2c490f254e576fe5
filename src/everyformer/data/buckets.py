"""Batches of pairs that are alike in length, every pair once an epoch.

Pairs are sorted by target and source length, both rounded up to a multiple of `GRAIN`; the source
lengths run up and down in turn, so that neighbours are always close. In every epoch pairs of equal
rounded lengths are shuffled among each other and the batches among themselves. Where the sorted
row is cut into batches depends on the rounded lengths alone, so an epoch always has as many.
"""

from __future__ import annotations

import numpy as np

from everyformer.core.errors import ConfigError

GRAIN = 2
"""Tokens; a coarser one shuffles more and pads more."""


class Buckets:
    """Buckets of like lengths: which pairs are in the batch of a step."""

    def __init__(self, lengths: np.ndarray, positions: int | None = None) -> None:
        """``lengths`` (pairs, 2) of source and target; ``positions`` in a batch, or None."""
        rounded = -(-lengths.astype(np.int64) // GRAIN)
        source, target = rounded.T
        most = int(source.max(initial=0)) + 1
        self._key = target * most + np.where(target % 2, most - 1 - source, source)
        self._sorted = GRAIN * rounded[np.argsort(self._key, kind="stable")]
        self._cuts = None if positions is None else _even_cuts(self._sorted, positions)
        self._latest: tuple[tuple[int, int], np.ndarray] | None = None

    def batches(self, size: int) -> int:
        """Number of batches in an epoch, of about ``size`` pairs without a limit of positions."""
        return len(self._cut_points(size)) - 1

    def rows(self, step: int, size: int, seed: int) -> np.ndarray:
        """The pairs of training step ``step``: a pure function of its arguments."""
        cuts = self._cut_points(size)
        epoch, number = divmod(step, len(cuts) - 1)
        order = np.random.default_rng((seed, epoch, len(cuts))).permutation(len(cuts) - 1)
        start, stop = cuts[order[number]], cuts[order[number] + 1]
        return self._epoch(seed, epoch)[start:stop]

    def _cut_points(self, size: int) -> np.ndarray:
        if self._cuts is not None:
            return self._cuts
        count = len(self._key)
        batches = -(-count // size)
        return np.arange(batches + 1) * count // batches

    def _epoch(self, seed: int, epoch: int) -> np.ndarray:
        """All pairs, sorted, with equal ones in an order drawn for the epoch."""
        if self._latest is None or self._latest[0] != (seed, epoch):
            drawn = np.random.default_rng((seed, epoch)).permutation(len(self._key))
            order = drawn[np.argsort(self._key[drawn], kind="stable")]
            self._latest = ((seed, epoch), order)
        return self._latest[1]


def _even_cuts(lengths: np.ndarray, positions: int) -> np.ndarray:
    """Cuts into as few batches of at most ``positions`` as can be, evened out.

    Without that the last batch would be whatever is left over, down to a single pair.

    Raises:
        ConfigError: one pair alone has more positions.
    """
    low, high = int(lengths.sum(1).max()), positions
    if low > high:
        raise ConfigError(
            f"the longest training pair has {low} positions, more than --data.tokens {positions}; "
            "give more tokens or a smaller --data.length"
        )
    cuts = _cuts(lengths, high)
    while high - low > 1:
        middle = (low + high) // 2
        tried = _cuts(lengths, middle)
        if len(tried) > len(cuts):
            low = middle
        else:
            high, cuts = middle, tried
    return cuts


def _cuts(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Each batch takes pairs until one more would bring it, padded, above ``limit`` positions."""
    cuts = [0]
    while cuts[-1] < len(lengths):
        start = cuts[-1]
        most = limit // int(lengths[start].sum())
        longest = np.maximum.accumulate(lengths[start : start + most], axis=0).sum(1)
        padded = longest * np.arange(1, len(longest) + 1)
        cuts.append(start + int(np.searchsorted(padded, limit, side="right")))
    return np.array(cuts)
