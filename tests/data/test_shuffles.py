"""Shuffles that are computed place by place: bijections, even, and of no memory."""

import tracemalloc

import numpy as np
import pytest

from everyformer.data import selection
from everyformer.data.batch import Portion
from everyformer.data.selection import Shuffle, epoch_rows

COUNTS = [*range(1, 36), 64, 97, 127, 128, 129, 251, 255, 256, 257, 1000, 1021, 1024, 1025, 4099]
BILLION = 10**9


@pytest.mark.parametrize("seed", range(4))
def test_every_row_comes_exactly_once(seed: int) -> None:
    for count in COUNTS:
        for epoch in range(3):
            found = Shuffle(count, (seed, epoch)).at(np.arange(count))
            assert np.array_equal(np.sort(found), np.arange(count)), (count, epoch)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    places = np.arange(1000)
    orders = [Shuffle(1000, key).at(places) for key in [(0, 0), (0, 1), (1, 0), (1, 1)]]
    for one in range(4):
        # of two independent orders of n rows about one row is in the same place
        same = [(orders[one] == orders[other]).sum() for other in range(4) if other != one]
        assert max(same) <= 6
        assert (orders[one] == places).sum() <= 6


def chi_square(counts: np.ndarray) -> float:
    """In standard deviations of its distribution, from its mean."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5


@pytest.mark.full("a rate over many draws")
@pytest.mark.parametrize("count", [5, 12, 16, 31])
def test_a_row_is_as_often_in_any_place_as_in_another(count: int) -> None:
    orders = np.array([Shuffle(count, (7, epoch)).at(np.arange(count)) for epoch in range(4000)])
    for place in (0, count // 2, count - 1):
        assert abs(chi_square(np.bincount(orders[:, place], minlength=count))) < 4
    # and beside any other row
    steps = (orders[:, 1] - orders[:, 0]) % count
    assert abs(chi_square(np.bincount(steps, minlength=count)[1:])) < 4


def test_places_side_by_side_and_one_bit_apart_lie_far_apart() -> None:
    shuffle = Shuffle(BILLION, (3, 1))
    places = np.arange(20_000)
    found = shuffle.at(places)
    assert abs(chi_square(np.bincount(found * 50 // BILLION, minlength=50))) < 4
    steps = (found[1:] - found[:-1]) % BILLION
    assert abs(chi_square(np.bincount(steps * 50 // BILLION, minlength=50))) < 4
    for bit in range(14):
        moved = (found - shuffle.at(places ^ (1 << bit))) % BILLION
        assert abs(chi_square(np.bincount(moved * 50 // BILLION, minlength=50))) < 4, bit


def test_rows_beyond_a_list_are_shuffled_without_memory() -> None:
    rows = np.broadcast_to(np.int64(7), BILLION)
    tracemalloc.start()
    assert (epoch_rows(rows, 10**6, 4096, 0) == 7).all()
    assert len(np.unique(Shuffle(BILLION, (0, 0)).at(np.arange(4096)))) == 4096
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("listed", [0, 100])
def test_an_epoch_has_every_row_once_whichever_way_it_is_shuffled(
    listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "LISTED", listed)
    rows = np.arange(100, 123)
    drawn = np.concatenate([epoch_rows(rows, step, 10, 4) for step in range(23)])
    epochs = drawn.reshape(10, 23)
    assert all(sorted(epoch) == rows.tolist() for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 10
    parts = [epoch_rows(rows, 2, 10, 4, Portion(n, 3)) for n in range(3)]
    assert np.array_equal(np.concatenate(parts), epoch_rows(rows, 2, 10, 4))
