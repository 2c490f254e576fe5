"""Which members are told apart: paired by seed, corrected for all pairs, and how often in error."""

import itertools
import random
import statistics
from typing import Any

import numpy as np
import pytest
from scipy import stats

from everyformer.core.student import p_value, power, quantile
from everyformer.lab.compare.collect import purpose_of
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import (
    POWER,
    contrasts,
    letters,
    seeds_for,
    seeds_to_see,
    smallest_seen,
)


def row(member: str, *values: float) -> Any:
    return {"member": member, "values": [*values], "quality": statistics.mean(values)}


def told(*rows: Any, metric: Any = "loss") -> dict[str, bool]:
    return {one["better"] + one["worse"]: one["apart"] for one in contrasts(rows, metric)}


def test_probabilities_are_those_of_students_paired_test() -> None:
    a, b = [2.1, 2.3, 2.2, 2.6], [2.4, 2.4, 2.5, 2.7]
    (one,) = contrasts([row("a", *a), row("b", *b)], "loss")
    assert one["probability"] == pytest.approx(stats.ttest_rel(b, a).pvalue, rel=1e-9)
    assert one["difference"] == pytest.approx(0.2)
    around = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert one["interval"] == pytest.approx([around.low, around.high], rel=1e-6)
    assert p_value([0.0, 0.0]) == 1
    assert p_value([0.1, 0.1]) == 0
    # what is better follows the metric
    (one,) = contrasts([row("a", 0.9, 0.92), row("b", 0.8, 0.83)], "accuracy")
    assert (one["better"], one["difference"]) == ("a", pytest.approx(0.095))


def test_seeds_are_paired() -> None:
    """Luck that all members share in a seed hides nothing."""
    luck = [0.0, 1.0, -1.0, 0.5]
    a = row("a", *(2.0 + each for each in luck))
    b = row("b", *(2.1 + each + 0.01 * n for n, each in enumerate(luck)))
    assert told(a, b) == {"ab": True}
    b["values"].reverse()
    assert told(a, b) == {"ab": False}


def test_a_pair_is_apart_exactly_where_its_interval_excludes_0() -> None:
    """Of b and c p is 0.032: the last of three may have that by Holm's correction (0.05), not by
    the number of pairs (0.0167), as the interval has it."""
    rows = [row("a", 1, 1.01, 0.99, 1), row("b", 2, 2, 2, 2), row("c", 2.05, 2.02, 2.08, 2.04)]
    one, other, third = contrasts(rows, "loss")
    assert [each["apart"] for each in (one, other, third)] == [True, True, False]
    assert third["interval"][0] < 0 < third["interval"][1]
    pair = stats.ttest_rel([2.05, 2.02, 2.08, 2.04], [2, 2, 2, 2]).pvalue
    assert 0.05 / 3 < pair < 0.05
    assert third["probability"] == pytest.approx(3 * pair)
    # of three pairs as wide as for a 95% chance that all are right
    half = (third["interval"][1] - third["interval"][0]) / 2
    scatter = statistics.stdev(c - b for b, c in zip(*(r["values"] for r in rows[1:]), strict=True))
    assert half == pytest.approx(quantile(3, 1 - 0.05 / 3) * scatter / 2)


@pytest.mark.parametrize("looks", [(), (3, 6)])
@pytest.mark.parametrize("members", [2, 3, 6])
def test_verdict_interval_and_probability_of_a_pair_agree(
    members: int, looks: tuple[int, ...]
) -> None:
    draw, apart = np.random.default_rng(members), 0
    for _ in range(40):
        rows = [row(f"m{n}", *draw.normal(0.8 * n, 0.5, size=6)) for n in range(members)]
        for one in contrasts(rows, "loss", looks):
            apart += one["apart"]
            assert one["apart"] == (one["interval"][0] > 0) == (one["probability"] < 0.05)
    assert 0 < apart < 40 * members * (members - 1) / 2


def test_one_training_each_tells_nothing_apart() -> None:
    rows = [row("a", 1.0), row("b", 9.0)]
    assert contrasts(rows, "loss") == []
    assert letters(rows, []) == [["a"], ["a"]]
    assert smallest_seen(rows, "loss") is None


def test_members_share_a_letter_if_and_only_if_they_are_not_apart() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        rows = [row(f"m{n}", n, n) for n in range(draw.randint(1, 9))]
        pairs: Any = [
            {"better": a["member"], "worse": b["member"], "apart": draw.random() < 0.5}
            for a, b in itertools.combinations(rows, 2)
        ]
        own = dict(zip([r["member"] for r in rows], letters(rows, pairs), strict=True))
        for one in pairs:
            assert bool({*own[one["better"]]} & {*own[one["worse"]]}) != one["apart"], seed
        assert all(own.values())
        assert "a" in own["m0"]


def test_the_smallest_difference_is_where_a_pair_begins_to_be_apart() -> None:
    a = np.array([2.0, 2.2, 2.1])
    scatter = np.array([0.03, -0.02, -0.01])
    seen = smallest_seen([row("a", *a), row("b", *(a + scatter))], "loss")
    assert seen is not None
    for factor, apart in ((0.99, False), (1.01, True)):
        assert told(row("a", *a), row("b", *(a + scatter + factor * seen))) == {"ab": apart}


def test_more_seeds_see_smaller_differences() -> None:
    rows = [row("a", 2.0, 2.2, 2.1), row("b", 2.1, 2.2, 2.3)]
    now = smallest_seen(rows, "loss")
    assert now is not None
    count = seeds_for(rows, "loss", now / 4)
    assert count is not None
    before, after = (smallest_seen(rows, "loss", n) for n in (count - 1, count))
    assert before is not None
    assert after is not None
    assert after <= now / 4 < before
    assert seeds_for(rows, "loss", 1e-6) is None


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(("members", "seeds"), [(2, 3), (2, 2), (4, 3), (5, 4)])
def test_equal_members_are_told_apart_in_one_of_twenty_comparisons(
    members: int, seeds: int
) -> None:
    """The rate lies within four deviations of 5%, whatever luck the members share in a seed."""
    draw, trials, wrong = np.random.default_rng(members * seeds), 4000, 0
    for _ in range(trials):
        luck = draw.normal(size=seeds)
        rows = [row(f"m{n}", *(luck + draw.normal(size=seeds))) for n in range(members)]
        wrong += any(one["apart"] for one in contrasts(rows, "loss"))
    deviation = (0.05 * 0.95 / trials) ** 0.5
    assert wrong / trials < 0.05 + 4 * deviation
    if members == 2:
        assert wrong / trials > 0.05 - 4 * deviation


@pytest.mark.parametrize("count", [2, 3, 5, 12, 100])
@pytest.mark.parametrize("shift", [0.0, 0.3, -1.0])
def test_the_power_is_that_of_the_noncentral_distribution(count: int, shift: float) -> None:
    for level in (0.95, 0.99):
        t, away = stats.t.ppf(0.5 + level / 2, count - 1), shift * count**0.5
        known = stats.nct.sf(t, count - 1, away) + stats.nct.cdf(-t, count - 1, away)
        assert power(shift, count, level) == pytest.approx(known, abs=1e-3)


def test_seeds_that_see_a_difference_do_so_in_eight_of_ten_comparisons() -> None:
    """With those and no fewer, by drawing it."""
    rows = [row("a", 2.0, 2.2, 2.1), row("b", 2.1, 2.2, 2.3)]
    scatter = statistics.stdev([0.1, 0.0, 0.2])
    seeds = seeds_to_see(rows, "loss", 0.1)
    assert seeds is not None
    draw, trials = np.random.default_rng(0), 1000
    for count, enough in ((seeds, True), (seeds - 2, False)):
        found = sum(
            p_value((0.1 + scatter * draw.normal(size=count)).tolist()) < 0.05
            for _ in range(trials)
        )
        assert (found / trials > POWER - 0.02) is enough
    assert seeds > (seeds_for(rows, "loss", 0.1) or 0)
    assert seeds_to_see(rows, "loss", 0.1, looks=4) > seeds
    assert seeds_to_see(rows, "loss", 1e-4) is None
    assert seeds_to_see([row("a", 1.0), row("b", 2.0)], "loss", 1.0) is None
    assert seeds_to_see([row("a", 1.0, 2.0), row("b", 2.0, 3.0)], "loss", 0.1) == 2


@pytest.mark.parametrize(
    ("best", "doubts", "settled"),
    [
        (["a"], [], True),
        (["a", "b"], [], False),
        (["a", "twin"], [], True),
        (["a"], ["the machine had other work"], False),
    ],
)
def test_what_the_first_is_good_for_says_whether_that_is_settled(
    best: list[str], doubts: list[str], settled: bool
) -> None:
    rows: Any = [{"member": "a", "same_as": ["twin"]}, {"member": "b", "same_as": []}]
    judged: Any = {"best": best, "doubts": doubts, "useful": True}
    words = purpose_of(rows, "loss", CompareConfig(), judged)
    assert words is not None
    assert words.endswith("though not settled") != settled
    assert purpose_of(rows, "loss", CompareConfig(), {**judged, "useful": False}) is None
