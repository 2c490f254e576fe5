"""Epochs of rows: every row once, in another order each time, and of a batch's portion its part."""

import numpy as np

from everyformer.data.batch import Portion
from everyformer.data.selection import epoch_rows


def test_an_epoch_has_every_row_once() -> None:
    rows = np.arange(100, 123)
    drawn = np.concatenate([epoch_rows(rows, step, 10, 4) for step in range(23)])
    epochs = drawn.reshape(10, 23)
    assert all(sorted(epoch) == rows.tolist() for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 10
    parts = [epoch_rows(rows, 2, 10, 4, Portion(n, 3)) for n in range(3)]
    assert np.array_equal(np.concatenate(parts), epoch_rows(rows, 2, 10, 4))
    assert not np.array_equal(epoch_rows(rows, 0, 23, 4), epoch_rows(rows, 0, 23, 5))
