"""Counting: what a held-out token costs whoever has counted the tokens of the training part.

    0-gram    p_0(w) = 1 / V
    1-gram    p_1(w) = (n(w) + B p_0) / (N + B)
    2-gram    p_2(w | c) = (n(c, w) + B p_1(w)) / (n(c) + B)

n are counts of the training part, c is the token before w, B = 4. The best of them is what a model
has to beat.
"""

from collections.abc import Sequence

import numpy as np

from everyformer.data.joined import JoinedFiles

PRIOR = 4.0
"""B: how many counts the shorter one weighs"""
GRAMS = 2
"""tokens that are counted together, at most"""
ROWS = 5000
"""sentences or pictures of a part that are counted, at most"""
STRETCHES, STRETCH = 64, 1 << 16
"""of a large part whose tokens are counted: how many, and tokens of each"""


def counted_loss(
    train: Sequence[np.ndarray], held_out: Sequence[np.ndarray], vocabulary: int, grams: int = GRAMS
) -> float | None:
    """Nats of a held-out token, by the best count of up to ``grams`` tokens; None where the
    training part has none to count, as where everything is held out.

    Args:
        train, held_out: runs of tokens, counted each by itself.
    """
    if not any(map(len, train)):
        return None
    p = np.full(sum(map(len, held_out)), 1 / vocabulary)
    losses = [float(-np.log(p).mean())]
    for order in range(grams):
        known, seen = _contexts(train, order, vocabulary), _contexts(held_out, order, vocabulary)
        pairs, counts = np.unique(known, return_counts=True)
        contexts, totals = np.unique(known // vocabulary, return_counts=True)
        n = _looked_up(pairs, counts, seen)
        p = (n + PRIOR * p) / (_looked_up(contexts, totals, seen // vocabulary) + PRIOR)
        losses.append(float(-np.log(p).mean()))
    return min(losses)


def sampled(tokens: np.ndarray | JoinedFiles) -> list[np.ndarray]:
    """The tokens, or up to 4 million of them in stretches at equal distances."""
    if len(tokens) <= STRETCHES * STRETCH:
        return [tokens[:]]
    starts = np.linspace(0, len(tokens) - STRETCH, STRETCHES).astype(np.int64)
    return [tokens[start : start + STRETCH] for start in starts]


def _contexts(runs: Sequence[np.ndarray], order: int, vocabulary: int) -> np.ndarray:
    """(N,) a number for each token with the ``order`` before it; what lies before a run is 0."""
    results = []
    for run in runs:
        padded = np.concatenate((np.zeros(order, np.int64), run.astype(np.int64)))
        number = np.zeros(len(run), np.int64)
        for back in range(order + 1):
            number = number * vocabulary + padded[back : back + len(run)]
        results.append(number)
    return np.concatenate(results) if results else np.empty(0, np.int64)


def _looked_up(keys: np.ndarray, counts: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """(N,) counts of what is asked for; 0 of what is not there."""
    if not len(keys):
        return np.zeros(len(asked))
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, counts[at], 0).astype(np.float64)
