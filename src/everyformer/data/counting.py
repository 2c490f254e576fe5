"""Counting: what a held-out token costs whoever has counted the tokens of the training part.

    0-gram    p_0(w) = 1 / V
    1-gram    p_1(w) = (n(w) + B p_0) / (N + B)
    2-gram    p_2(w | c) = (n(c, w) + B p_1(w)) / (n(c) + B)

n are counts of the training part, c is the token before w, B = 4. The best of them is what a model
has to beat.
"""

from collections.abc import Sequence

import numpy as np

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
    p = [np.full(len(run), 1 / vocabulary) for run in held_out]
    losses = [_loss(p)]
    for order in range(grams):
        known = np.concatenate([_contexts(run, order, vocabulary) for run in train])
        pairs, counts = np.unique(known, return_counts=True)
        del known
        # the pairs are in order, and so are their contexts
        contexts, first = np.unique(pairs // vocabulary, return_index=True)
        totals = np.add.reduceat(counts, first)
        for number, run in enumerate(held_out):
            seen = _contexts(run, order, vocabulary)
            n, of = (
                _looked_up(pairs, counts, seen),
                _looked_up(contexts, totals, seen // vocabulary),
            )
            p[number] = (n + PRIOR * p[number]) / (of + PRIOR)
        losses.append(_loss(p))
    return min(losses)


def _loss(p: Sequence[np.ndarray]) -> float:
    """The mean of -log p."""
    return -sum(float(np.log(run).sum()) for run in p) / sum(map(len, p))


def sampled(tokens: np.ndarray) -> list[np.ndarray]:
    """The tokens, or up to 4 million of them in stretches at equal distances."""
    if len(tokens) <= STRETCHES * STRETCH:
        return [tokens[:]]
    starts = np.linspace(0, len(tokens) - STRETCH, STRETCHES).astype(np.int64)
    return [tokens[start : start + STRETCH] for start in starts]


def _contexts(run: np.ndarray, order: int, vocabulary: int) -> np.ndarray:
    """(N,) a number for each token with the ``order`` before it; what lies before a run is 0."""
    kind = np.int32 if vocabulary ** (order + 1) < 2**31 else np.int64
    padded = np.concatenate((np.zeros(order, kind), run.astype(kind)))
    number = np.zeros(len(run), kind)
    for back in range(order + 1):
        number = number * vocabulary + padded[back : back + len(run)]
    return number


def _looked_up(keys: np.ndarray, counts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(N,) counts of what is asked for; 0 of what is not there."""
    if not len(keys):
        return np.zeros(len(wanted))
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, counts[at], 0).astype(np.float64)
