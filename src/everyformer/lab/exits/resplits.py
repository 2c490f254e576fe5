"""Checks of promises: prompts split at random into some to test and some to see.

    on one half of them a threshold is chosen;  its risk on the other half is what it realised

Of many splits at most a share epsilon may realise more than delta, plus what the other half's own
mean strays. The losses of one calibration at all of its thresholds are enough for that.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everyformer.lab.exits.learn_then_test import Guarantee, fixed_sequence


class Realised(NamedTuple):
    """Risks that splits realised of one promise."""

    delta: float
    risks: np.ndarray
    """(splits,) the mean loss of each other half; 0 where no token may leave"""
    thresholds: np.ndarray
    """(splits,) those that were chosen, 1 where none passed"""

    @property
    def violations(self) -> float:
        """The share of splits that realised more than delta."""
        return float((self.risks > self.delta).mean())


def resplit(
    losses: dict[float, Sequence[float]], guarantee: Guarantee, splits: int = 100, seed: int = 0
) -> Realised | None:
    """Choose and look ``splits`` times; None: half of the prompts could not accept anything.

    Args:
        losses: of the same prompts at each threshold.
    """
    thresholds = sorted(losses, reverse=True)
    table = np.array([losses[threshold] for threshold in thresholds])
    half = table.shape[1] // 2
    if half < guarantee.needed:
        return None
    generator = np.random.default_rng(seed)
    risks, chosen = [], []
    for _ in range(splits):
        order = generator.permutation(table.shape[1])
        tested, seen = table[:, order[:half]], table[:, order[half:]]
        by_threshold = dict(zip(thresholds, tested, strict=True))
        result = fixed_sequence(thresholds, by_threshold.__getitem__, guarantee).threshold
        chosen.append(1.0 if result is None else result)
        risks.append(0.0 if result is None else float(seen[thresholds.index(result)].mean()))
    return Realised(guarantee.delta, np.array(risks), np.array(chosen))
