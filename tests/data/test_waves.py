"""Waves: what a series repeats is what its number says, and its shape what its class says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everyformer.data import DataConfig, load_dataset, waves
from everyformer.data.batch import Batch

LENGTH = 400


def drawn(task: str, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A thousand series without noise."""
    monkeypatch.setattr(waves, "NOISE", 0.0)
    return load_dataset(DataConfig(source="waves", length=LENGTH), task).train_batch(0, 1000, 0)


def test_a_series_changes_its_sign_twice_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = drawn("regress-series", monkeypatch)
    signs = batch.inputs[..., 0].sign()
    changes = (signs[:, 1:] * signs[:, :-1] < 0).sum(1)
    assert float((changes - 2 * batch.targets[:, 0]).abs().max()) <= 2
    assert 1 <= float(batch.targets.min()) < 1.1
    assert 3.9 < float(batch.targets.max()) <= 4
    assert batch.targets.shape == (1000, 1)


def test_shapes_differ_by_how_much_of_them_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = drawn("classify-series", monkeypatch)
    # root mean squares of a sine, a square and a sawtooth between -1 and 1
    for shape, size in enumerate((0.5**0.5, 1.0, 3**-0.5)):
        rows = batch.inputs[batch.targets == shape]
        assert len(rows) > 250
        assert float(rows.square().mean().sqrt()) == pytest.approx(size, abs=0.01)


def test_the_noise_is_normal_of_three_tenths() -> None:
    noisy = load_dataset(DataConfig(source="waves", length=LENGTH), "classify-series")
    batch = noisy.train_batch(0, 500, 0)
    square = batch.inputs[batch.targets == 1]
    assert float((square.abs() - 1).std()) == pytest.approx(0.3, abs=0.02)


def test_the_numbers_are_standardised_by_a_uniform_draw() -> None:
    numbers = load_dataset(DataConfig(source="waves", length=16), "regress-series").numbers
    assert numbers is not None
    assert numbers.mean == (pytest.approx(2.5),)
    assert numbers.std == (pytest.approx(np.sqrt(9 / 12), rel=0.01),)


def test_a_number_of_minus_a_hundred_is_scored() -> None:
    batch = Batch(torch.zeros(2, 3, 1), torch.tensor([[-100.0], [1.0]]))
    assert (batch.scored, batch.tokens) == (2, 6)
