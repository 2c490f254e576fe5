"""Counting tokens: equal to loops over the equations, and what every kind of data is held to."""

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from everyformer.data import DataConfig, load_dataset
from everyformer.data.counting import PRIOR, STRETCH, STRETCHES, counted_loss, sampled


def by_loops(train: list[list[int]], held_out: list[list[int]], vocabulary: int) -> list[float]:
    """Losses of the 0-, 1- and 2-gram; a run begins after token 0."""
    pairs = Counter(pair for run in train for pair in itertools.pairwise([0, *run]))
    before = Counter(c for run in train for c, _ in itertools.pairwise([0, *run]))
    single = Counter(token for run in train for token in run)
    total, sums, count = sum(single.values()), [0.0, 0.0, 0.0], 0
    for run in held_out:
        for c, w in itertools.pairwise([0, *run]):
            p0 = 1 / vocabulary
            p1 = (single[w] + PRIOR * p0) / (total + PRIOR)
            p2 = (pairs[c, w] + PRIOR * p1) / (before[c] + PRIOR)
            sums = [s - math.log(p) for s, p in zip(sums, (p0, p1, p2), strict=True)]
            count += 1
    return [s / count for s in sums]


@pytest.mark.parametrize("grams", [0, 1, 2])
def test_counting_equals_loops(grams):
    random = np.random.default_rng(0)
    train = [random.integers(0, 5, n) // 2 for n in (40, 1, 17)]
    held_out = [random.integers(0, 6, n) for n in (9, 30)]
    losses = by_loops([r.tolist() for r in train], [r.tolist() for r in held_out], 6)
    assert counted_loss(train, held_out, 6, grams) == pytest.approx(min(losses[: grams + 1]))


def test_pairs_fall_back_on_single_tokens_and_these_on_equal_chances():
    train, held_out = [[1, 2] * 30 + [3]], [[1, 2, 1, 2, 3, 4]]
    losses = by_loops(train, held_out, 6)
    assert losses[2] == min(losses)
    assert counted_loss([np.array(train[0])], [np.array(held_out[0])], 6) == pytest.approx(
        losses[2]
    )


def test_tokens_that_follow_each_other_surely_cost_nearly_nothing_by_pairs():
    turns = np.tile([0, 1, 2], 4000)
    assert counted_loss([turns], [turns], 3) < 0.01
    assert counted_loss([turns], [turns], 3, grams=1) == pytest.approx(math.log(3), rel=1e-4)


def test_where_counts_mislead_equal_chances_are_better():
    zeros, ones = np.zeros(50, np.int64), np.ones(50, np.int64)
    assert counted_loss([zeros], [ones], 2) == pytest.approx(math.log(2))


def test_who_has_counted_nothing_is_no_baseline():
    nothing, some = np.zeros(0, np.int64), np.ones(50, np.int64)
    assert counted_loss([nothing], [some], 2) is None
    assert counted_loss([], [some], 2) is None


def test_of_large_parts_stretches_are_counted():
    tokens = np.arange(STRETCHES * STRETCH + 7)
    parts = sampled(tokens)
    assert len(parts) == STRETCHES
    assert {len(part) for part in parts} == {STRETCH}
    assert parts[0][0] == 0
    assert parts[-1][-1] == tokens[-1]
    assert len(sampled(tokens[:9])) == 1


@pytest.mark.parametrize(
    ("source", "task", "least", "most"),
    [
        ("copy", "seq2seq", 3.5, 4.3),  # 64 symbols at random, and an end
        ("digits", "pixels", 1.0, 2.5),
        ("walks", "decision", 2.5, 3.0),  # 20 nodes
        ("digits", "classify-image", None, None),
    ],
)
def test_each_kind_of_data_says_what_counting_costs(source, task, least, most):
    dataset = load_dataset(DataConfig(source=source), task)
    if least is None:
        assert dataset.counting is None
    else:
        assert least < dataset.counting < most


def test_counting_holds_a_few_numbers_for_each_token() -> None:
    """Beside a text that lies on disk: at most 24 bytes a token of both samples, where copies of
    all by 8 bytes were 37."""
    draw = np.random.default_rng(0)
    train, held_out = ([draw.integers(0, 256, 1 << 14) for _ in range(32)] for _ in range(2))
    tracemalloc.start()
    counted_loss(train, held_out, 256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * 2 * 32 * (1 << 14)
