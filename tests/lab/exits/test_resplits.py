"""Splits choose a threshold on one half of the prompts and see its risk on the other."""

import numpy as np
import pytest

from everyformer.lab.exits.learn_then_test import P_VALUES, Guarantee
from everyformer.lab.exits.resplits import Realised, resplit

BAD = 10
LOSSES = {0.9: [0.0] * 200, 0.5: [0.0] * (200 - BAD) + [1.0] * BAD, 0.1: [1.0] * 200}
"""of the ten last prompts 0.5 loses everything: who tests the first half alone always allows it"""


def test_a_threshold_is_chosen_by_the_prompts_that_are_not_seen() -> None:
    """Of the ten a half has k and the other 10 - k: 0.5 passes while k is small enough."""
    guarantee = Guarantee(0.1, 0.05)
    most = max(k for k in range(BAD) if P_VALUES["hoeffding-bentkus"](k, 100, 0.1) <= 0.05)
    found = resplit(LOSSES, guarantee, splits=200)
    assert found is not None
    assert found.delta == 0.1
    assert found.risks.shape == found.thresholds.shape == (200,)
    assert set(found.thresholds.tolist()) == {0.9, 0.5}
    assert found.risks[found.thresholds == 0.9].max() == 0
    seen = np.round(100 * found.risks[found.thresholds == 0.5]).astype(int)
    assert set(seen.tolist()) <= set(range(BAD - most, BAD + 1))
    assert len(set(seen.tolist())) > 1


def test_the_halves_are_of_all_prompts_alike() -> None:
    """The ten fall on the half that is seen as often as not, within three standard errors."""
    found = resplit(LOSSES, Guarantee(0.3, 0.05), splits=400)
    assert found is not None
    assert set(found.thresholds.tolist()) == {0.5}
    # hypergeometric: mean 5, variance 10 / 4 (190 / 199)
    error = np.sqrt(BAD / 4 * 190 / 199 / 400)
    assert abs(100 * found.risks.mean() - BAD / 2) < 3 * error


def test_no_order_of_thresholds_is_another_one() -> None:
    backward = dict(reversed(LOSSES.items()))
    one, other = (resplit(losses, Guarantee(0.1, 0.05)) for losses in (LOSSES, backward))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.risks, other.risks)
    np.testing.assert_array_equal(one.thresholds, other.thresholds)


def test_where_nothing_passes_no_token_leaves_and_nothing_is_lost() -> None:
    found = resplit({0.9: [1.0] * 200}, Guarantee(0.05, 0.05), splits=7)
    assert found is not None
    assert (found.risks.tolist(), found.thresholds.tolist()) == ([0.0] * 7, [1.0] * 7)


@pytest.mark.parametrize(("prompts", "enough"), [(117, False), (118, True)])
def test_half_of_the_prompts_must_be_enough(prompts: int, enough: bool) -> None:
    """59 at delta = epsilon = 0.05."""
    found = resplit({0.9: [0.0] * prompts}, Guarantee(0.05, 0.05), splits=2)
    assert (found is not None) == enough


def test_violations_are_the_splits_above_delta() -> None:
    risks = np.array([0.0, 0.1, 0.1000001, 0.3])
    assert Realised(0.1, risks, np.ones(4)).violations == 0.5
