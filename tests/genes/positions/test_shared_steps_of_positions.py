"""Steps that positions and their references share, against numbers and loops written out here."""

import math

import pytest
import torch

from everyformer.core.mask import lengths_of
from everyformer.genes.positions.rope_scaling import RopeScaling, rates, rates_reference
from everyformer.genes.positions.t5_relative import T5Relative

RAMPS = [
    # L, beta_fast, beta_slow, truncate, pairs that keep their rate, share of 1/s of the others
    # 16 ln(20000 / 64 pi) / (2 ln 500) = 5.92 and 16 ln(20000 / 2 pi) / (2 ln 500) = 10.38: a ramp
    # from 5 to 11, beyond the last of eight pairs
    (20_000, 32.0, 1.0, True, 6, (1 / 6, 2 / 6)),
    # 16 ln(64 / 8 pi) / (2 ln 500) = 1.2033 for both: a step
    (64, 4.0, 4.0, False, 2, (1.0,) * 6),
    # both ends below the first pair, whose rate stays
    (6, 4.0, 2.0, True, 1, (1.0,) * 7),
]


@pytest.mark.parametrize(("length", "fast", "slow", "truncate", "kept", "shares"), RAMPS)
def test_yarns_ramp_lies_where_its_turns_are(length, fast, slow, truncate, kept, shares):
    """Eight pairs at a base of 500, four times longer: theta_m (1 - r_m + r_m / 4)."""
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_length=length, beta_fast=fast, beta_slow=slow,
        truncate=truncate,
    )  # fmt: skip
    ramp = [0.0] * kept + list(shares)
    expected = [500 ** (-m / 8) * (1 - r + r / 4) for m, r in enumerate(ramp)]
    found, factor = rates(torch.arange(3)[None], 8, 500.0, scaling)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    assert rates_reference(8, 500.0, scaling, 3)[0] == pytest.approx(expected, rel=1e-12)
    assert factor == pytest.approx(1 + 0.1 * math.log(4))


@pytest.mark.parametrize(
    ("causal", "buckets", "rows"),
    [
        # distances -5 .. 5 from key to query, of which 3 is the last that differs
        (True, 4, [0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 3]),
        (False, 8, [7, 7, 7, 6, 5, 0, 1, 2, 3, 3, 3]),
    ],
)
def test_t5s_farthest_distance_with_a_row_of_its_own(causal, buckets, rows):
    made = T5Relative(
        width=6, heads=2, causal=causal, options={"buckets": buckets, "max_distance": 3}
    )
    with torch.no_grad():
        made.table.copy_(torch.arange(2 * buckets).view(buckets, 2))
    added = made.by_distance(torch.arange(-5, 6), torch.float64)
    assert added.tolist() == [[2.0 * row + head for row in rows] for head in range(2)]


@pytest.mark.parametrize(
    ("positions", "lengths"),
    [
        ([0, 1, 2, 3], [4, 4, 4, 4]),
        ([0, 1, 1, 2, 0, 1, 0, 0, 5], [3, 3, 3, 3, 2, 2, 1, 6, 6]),
        # a sequence begins at 0, or where positions fall back
        ([3, 4, 5, 2, 3], [6, 6, 6, 4, 4]),
        ([9, 1, 0, 1, 2, 7, 6], [10, 2, 8, 8, 8, 8, 7]),
    ],
)
def test_positions_that_fall_begin_a_sequence(positions, lengths):
    assert lengths_of(torch.tensor([positions])).tolist() == [lengths]
