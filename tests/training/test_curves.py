"""Advice by what a curve shows: each shape its own, and the learning rate that was used in it."""

import numpy as np
import pytest

from everyformer.training.curves import advice

STEPS = np.arange(40)
CURVES = {
    "too short": ([3.0], 3.0, "too short to say why (1 logged step): train longer (--steps or --b"),
    "rose": (np.where(STEPS < 20, 3 - 0.05 * STEPS, 1 + 0.1 * STEPS), 4.0, "rose again"),
    "never moved": (3 + 0.001 * np.sin(STEPS), 3.0, "stayed where it began (3 to 3): try another"),
    "by heart": (3 * 0.9**STEPS, 3.5, "rows were learned by heart, so give more data"),
    "still falling": (3 - 0.05 * STEPS, 1.1, "was still falling (1.62 to 1.22): try a higher "
                      "learning rate (--lr 0.003), and only then"),
    "at rest": (1 + 2 * 0.6**STEPS, 1.0, "came to rest at 1, as the learning rate did: train long"),
}  # fmt: skip


def curve_of(losses, *evaluations):
    return {"training": [{"loss": float(loss)} for loss in losses], "evaluations": [*evaluations]}


@pytest.mark.parametrize("shape", CURVES)
def test_a_curve_says_what_to_try(shape):
    losses, held_out, words = CURVES[shape]
    told = advice({"loss": held_out}, curve_of(losses), 1e-3)
    assert words in told
    others = [other for name, (_, _, other) in CURVES.items() if name != shape]
    assert not any(other in told for other in others)


def test_losses_of_small_batches_that_scatter_did_not_rise():
    for seed in range(20):
        scattered = np.random.default_rng(seed).normal(2.5, 0.3, 40)
        assert "rose" not in advice({"loss": 2.5}, curve_of(scattered), 1e-3), seed


@pytest.mark.parametrize(
    ("held_out", "rose"), [([3, 2, 1.9], False), ([3, 1.9, 2], True), ([2], True)]
)
def test_a_loss_that_falls_on_held_out_data_did_not_rise(held_out, rose):
    losses, _, words = CURVES["rose"]
    curve = curve_of(losses, *({"evaluation": {"loss": loss}} for loss in held_out))
    assert (words in advice({"loss": held_out[-1]}, curve, 1e-3)) == rose


@pytest.mark.parametrize(
    ("shape", "rates"),
    [("rose", "0.0001"), ("never moved", "0.01 or 0.0001"), ("at rest", "0.003")],
)
def test_another_learning_rate_is_one_that_was_not_tried(shape, rates):
    losses, held_out, _ = CURVES[shape]
    assert f"--lr {rates}" in advice({"loss": held_out}, curve_of(losses), 1e-3)
