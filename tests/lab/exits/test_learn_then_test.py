"""Learn-then-Test: p-values are their definitions in fractions; every outcome keeps the promise."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import ConfigError, DataError
from everyformer.lab.exits.learn_then_test import (
    FixedSequence,
    Guarantee,
    SequenceStep,
    binomial_tail,
    fixed_sequence,
    require_enough,
)

KINDS = ("hoeffding", "hoeffding-bentkus", "binomial")
BOUNDED = KINDS[:2]
DELTAS = (0.02, 0.3, 0.5, 0.95)


def p_value(losses: Any, delta: float, kind: Any = "hoeffding-bentkus") -> float:
    guarantee = Guarantee(delta, 1 - 1e-9, kind)  # for which one prompt is enough
    return fixed_sequence([0.5], lambda _: losses, guarantee).steps[0].p


def zeros_and_ones(violations: int, n: int) -> list[int]:
    return [1] * violations + [0] * (n - violations)


def tails(n: int, delta: float) -> list[Fraction]:
    """P[Bin(n, delta) <= k] for k = 0 .. n, without rounding."""
    d = Fraction(delta)
    terms = (math.comb(n, i) * d**i * (1 - d) ** (n - i) for i in range(n + 1))
    return list(itertools.accumulate(terms))


def power_form(k: int, n: int, delta: float) -> Fraction:
    """exp(-n h(k / n, delta)) = (n delta / k)^k (n (1 - delta) / (n - k))^(n - k)."""
    d = Fraction(delta)
    first = (n * d / k) ** k if k else Fraction(1)
    return first * ((n * (1 - d) / (n - k)) ** (n - k) if n > k else 1)


def counts(n: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """How often each of so many outcomes occurs among n prompts, in all ways."""
    for cuts in itertools.combinations(range(n + kinds - 1), kinds - 1):
        edges = (-1, *cuts, n + kinds - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


def multinomial(found: Sequence[int], chances: Sequence[Fraction]) -> Fraction:
    """The probability of such counts."""
    ways = math.factorial(sum(found))
    for count in found:
        ways //= math.factorial(count)
    return ways * math.prod(c**k for c, k in zip(chances, found, strict=True))


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("n", [1, 13, 100])
def test_p_values_are_their_definitions(n: int, delta: float) -> None:
    """Of every whole total, such as 29 of 100, which floating point makes of no mean again."""
    parts = set()
    for k, tail in enumerate(tails(n, delta)):
        hoeffding = power_form(k, n, delta) if k < n * delta else Fraction(1)
        bentkus = Fraction(math.e) * tail
        parts.add(bentkus < hoeffding)
        for kind, exact in (("binomial", tail), ("hoeffding-bentkus", min(hoeffding, bentkus, 1))):
            p = p_value(zeros_and_ones(k, n), delta, kind)
            assert p == pytest.approx(float(exact), rel=1e-12, abs=1e-300)
    assert parts == {False, True} or n < 100 or delta < 0.3


@pytest.mark.parametrize(
    ("losses", "ceiling"),
    [
        ([0.5, 0, 0], 1),
        ([0.5] * 3 + [0] * 57, 2),
        ([0.01] * 50 + [0.25] * 14, 4),
        ([1e-9] * 7, 1),
        ([1e-300, 0], 1),
    ],
)
def test_a_total_between_whole_numbers_is_rounded_up_in_bentkus_and_kept_in_hoeffding(
    losses: list[float], ceiling: int
) -> None:
    n, delta = len(losses), 0.4
    with localcontext(prec=50):
        total, d = sum(map(Decimal, losses)), Decimal(delta)
        a = total / n
        h = a * (a / d).ln() + (1 - a) * ((1 - a) / (1 - d)).ln()
        tail = tails(n, delta)[ceiling]
        bentkus = Decimal(1).exp() * tail.numerator / tail.denominator
        assert p_value(losses, delta) == pytest.approx(
            float(min((-n * h).exp(), bentkus)), rel=1e-12
        )
        square = (-2 * n * (d - a) ** 2).exp()
        assert p_value(losses, delta, "hoeffding") == pytest.approx(float(square), rel=1e-12)


def test_ten_tenths_are_one() -> None:
    """Of which running sums make 2.0000000000000004, for Bentkus a violation more."""
    for wholes in (1, 2, 3, 5):
        n = 10 * wholes
        assert p_value([0.1] * n, 0.95) == p_value(zeros_and_ones(wholes, n), 0.95)


def test_a_risk_just_below_delta_has_a_p_just_below_1_and_not_above() -> None:
    """Though h, which is about (delta - R)^2 / 2, is less than its own rounding."""
    for kind, delta, below in itertools.product(BOUNDED, (0.02, 0.3, 0.7), (1e-8, 1e-10, 1e-12)):
        assert 1 - 1e-9 < p_value([delta * (1 - below)] * 500, delta, kind) <= 1


@pytest.mark.parametrize(
    ("n", "delta"), [*((n, delta) for n in (3, 64) for delta in DELTAS), (500, 0.3)]
)
def test_p_rises_with_the_losses_and_binomial_is_below_bentkus_below_hoeffding(
    n: int, delta: float
) -> None:
    """The last by Chernoff's bound of the tail, and Pinsker's of h."""
    rows = {k: [p_value(zeros_and_ones(v, n), delta, k) for v in range(n + 1)] for k in KINDS}
    for row in rows.values():
        assert row == sorted(row)
        assert 0 <= row[0] < row[-1] == 1
    for hoeffding, bentkus, binomial in zip(*rows.values(), strict=True):
        assert binomial <= bentkus * (1 + 1e-12)
        assert bentkus <= hoeffding * (1 + 1e-12)


@pytest.mark.parametrize("delta", [1e-6, 0.05, 0.9])
def test_tails_of_a_million_prompts_are_scipys(delta: float) -> None:
    bdtr = pytest.importorskip("scipy.special").bdtr
    n = 10**6
    spread = math.sqrt(n * delta * (1 - delta))
    for deviations in (-30, -8, -1, 0, 3):
        k = min(n, max(0, round(n * delta + deviations * spread)))
        expected = bdtr(k, n, delta)
        assert binomial_tail(k, n, delta) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert binomial_tail(n, n, delta) == 1
    losses = np.zeros(n)
    losses[: int(n * delta * 0.99)] = 1
    ps = [p_value(losses, delta, kind) for kind in KINDS]
    assert ps == sorted(ps, reverse=True)
    assert all(0 <= p < 1 for p in ps)


def independent(risks: Sequence[Fraction]) -> Callable[[tuple[int, ...]], Fraction]:
    """The chance of losses at each threshold that know nothing of one another."""
    return lambda lost: math.prod(r if x else 1 - r for r, x in zip(risks, lost, strict=True))


def nested(risks: Sequence[Fraction]) -> Callable[[tuple[int, ...]], Fraction]:
    """The chance of losses of which each begins at a threshold and stays: one uniform number."""

    def chance(lost: tuple[int, ...]) -> Fraction:
        most = min((r for r, x in zip(risks, lost, strict=True) if x), default=Fraction(1))
        least = max((r for r, x in zip(risks, lost, strict=True) if not x), default=Fraction(0))
        return max(most - least, Fraction(0))

    return chance


@pytest.mark.parametrize("kind", ["binomial", "hoeffding-bentkus"])
def test_the_walk_accepts_any_bad_threshold_with_probability_at_most_epsilon(kind: str) -> None:
    """All 1,716 outcomes of 6 prompts at 3 thresholds, whatever the risks and their dependence.

    Each of three independent tests at the edge passes with probability 0.233: all of them without
    the walk would break the promise with 0.55.
    """
    delta, epsilon, n = 0.4, 0.25, 6
    guarantee = Guarantee(delta, epsilon, kind)  # type: ignore[arg-type]
    patterns = list(itertools.product((0, 1), repeat=3))
    accepted = []
    for outcome in counts(n, len(patterns)):
        prompts = [p for p, count in zip(patterns, outcome, strict=True) for _ in range(count)]
        by_threshold = dict(zip((0.9, 0.6, 0.3), zip(*prompts, strict=True), strict=True))
        found = fixed_sequence([0.9, 0.6, 0.3], by_threshold.__getitem__, guarantee)
        accepted.append((outcome, len(found.accepted)))
    edge, safe, bad = Fraction(41, 100), Fraction(1, 10), Fraction(7, 10)
    cases = [(edge, edge, edge), (safe, edge, bad), (safe, safe, edge), (edge, safe, edge)]
    worst = 0.0
    for risks, law in itertools.product(cases, (independent, nested)):
        chances = [law(risks)(pattern) for pattern in patterns]
        assert sum(chances) == 1
        wrong = sum(
            multinomial(outcome, chances)
            for outcome, steps in accepted
            if any(risk > delta for risk in risks[:steps])
        )
        assert wrong <= Fraction(epsilon), (risks, law)
        worst = max(worst, float(wrong))
    assert worst > (0.2 if kind == "binomial" else 0.03)


def walked(
    violations: dict[float, int], n: int, guarantee: Guarantee, **how: bool
) -> tuple[FixedSequence, list[float]]:
    """The walk over thresholds with so many violations each, and what it asked for."""
    asked: list[float] = []

    def losses(threshold: float) -> list[int]:
        asked.append(threshold)
        return zeros_and_ones(violations[threshold], n)

    return fixed_sequence(list(violations), losses, guarantee, **how), asked


@pytest.mark.parametrize(
    ("violations", "threshold", "tested"),
    [
        ((0, 1, 2, 9), 0.5, 4),
        ((0, 9, 0, 0), 1.0, 2),
        ((9, 0, 0, 0), None, 1),
        ((0, 0, 0, 0), 0.25, 4),
        ((2, 1, 3, 0), 0.75, 3),
    ],
)
def test_the_walk_ends_at_the_first_failure(
    violations: tuple[int, ...], threshold: float | None, tested: int
) -> None:
    """Of 100 prompts at delta = 0.1 and epsilon = 0.03, two may be violations and three not."""
    by_threshold = dict(zip((1.0, 0.75, 0.5, 0.25), violations, strict=True))
    guarantee = Guarantee(0.1, 0.003, "binomial")
    found, asked = walked(by_threshold, 100, guarantee)
    assert found.threshold == threshold
    assert asked == list(by_threshold)[:tested] == [step.threshold for step in found.steps]
    assert [step.risk for step in found.steps] == [v / 100 for v in violations[:tested]]
    exact = tails(100, 0.1)
    for step, v in zip(found.steps, violations, strict=False):
        assert step.p == pytest.approx(float(exact[v]), rel=1e-12)
    assert (found.delta, found.epsilon, found.p_value, found.n) == (0.1, 0.003, "binomial", 100)
    whole, asked = walked(by_threshold, 100, guarantee, to_the_end=True)
    assert asked == list(by_threshold)
    assert whole.threshold == threshold
    assert whole.accepted == found.accepted
    assert whole.steps[: len(found.steps)] == found.steps


def test_p_equal_to_epsilon_passes() -> None:
    found, _ = walked({0.5: 0, 0.25: 1}, 3, Guarantee(0.5, 0.125, "binomial"))
    assert found.steps == (SequenceStep(0.5, 0, 0.125), SequenceStep(0.25, 1 / 3, 0.5))
    assert found.threshold == 0.5


@pytest.mark.parametrize(
    ("delta", "epsilon", "by_tail", "by_square"),
    [
        *((0.02, 0.05, 149, 3745), (0.05, 0.05, 59, 600), (0.1, 0.05, 29, 150)),
        *((0.5, 0.25, 2, 3), (0.5, 0.125, 3, 5), (0.9, 0.5, 1, 1), (0.001, 0.05, 2995, 1497867)),
    ],
)
def test_the_number_needed_is_the_least_that_can_pass(
    delta: float, epsilon: float, by_tail: int, by_square: int
) -> None:
    for kind in KINDS:
        n = Guarantee(delta, epsilon, kind).needed  # type: ignore[arg-type]
        assert n == (by_square if kind == "hoeffding" else by_tail)
        assert p_value(np.zeros(n), delta, kind) <= epsilon
        assert n == 1 or p_value(np.zeros(n - 1), delta, kind) > epsilon


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_prompts_are_refused_with_the_number_needed(kind: str) -> None:
    guarantee = Guarantee(0.05, 0.1, kind)  # type: ignore[arg-type]
    least = {"hoeffding": "461"}.get(kind, "45")
    require_enough(int(least), guarantee)
    for n in (0, int(least) - 1):
        message = (
            f"{n} prompts, but `delta=0.05` at `epsilon=0.1` needs at least {least} by '{kind}'"
        )
        with pytest.raises(DataError, match=message):
            require_enough(n, guarantee)
        with pytest.raises(DataError, match=message):
            fixed_sequence([0.5], lambda _, n=n: [0] * n, guarantee)
    assert fixed_sequence([0.5], lambda _: [0] * int(least), guarantee).threshold == 0.5


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ([], "`thresholds` is empty"),
        ([0.5, 0.9], "must fall, the safest first, but 0.5 is followed by 0.9"),
        ([0.9, 0.5, 0.5], "0.5 is followed by 0.5"),
        ([1.1, 0.5], r"`thresholds\[0\]` must be at least 0 and at most 1, not 1.1"),
        ([0.5, -0.1], r"`thresholds\[1\]` must be at least 0 and at most 1"),
        ([math.nan], "at most 1, not nan"),
        (["high"], "must be float, not 'high'"),
        (0.5, r"`thresholds` must be tuple\[float, ...\], not 0.5"),
    ],
)
def test_thresholds_are_refused_before_anything_is_generated(
    thresholds: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fixed_sequence(thresholds, lambda _: pytest.fail("generated"), Guarantee())


def test_delta_and_epsilon_are_refused_with_what_they_mean() -> None:
    meaning = "delta is the mean loss that is tolerated, epsilon the probability"
    for name, value in itertools.product(("delta", "epsilon"), (0, 1, math.nan)):
        message = f"`{name}` must be above 0 and below 1, not .*{meaning}"
        with pytest.raises(ConfigError, match=message):
            Guarantee(**{"delta": 0.1, "epsilon": 0.1} | {name: value})


@pytest.mark.parametrize(
    ("losses", "kind", "message"),
    [
        ([0, 0, 1.5], "hoeffding", r"loss of prompt 2 is 1.5, but must be in \[0, 1\]"),
        ([-1e-9], "hoeffding-bentkus", "loss of prompt 0 is -1e-09"),
        ([0, math.nan], "hoeffding-bentkus", "loss of prompt 1 is nan"),
        ([1, 0.29], "binomial", "prompt 1 is 0.29, but must be 0 or 1 .* hoeffding-bentkus"),
    ],
)
def test_losses_are_refused_where_the_test_does_not_hold(
    losses: list[float], kind: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fixed_sequence([0.5], lambda _: losses, Guarantee(0.5, 0.5, kind))  # type: ignore[arg-type]


def test_every_threshold_is_tried_on_the_same_prompts() -> None:
    with pytest.raises(DataError, match=r"0\.5 has losses of 99 prompts, but the first one of 100"):
        fixed_sequence([0.9, 0.5], lambda at: [0] * (100 if at > 0.5 else 99), Guarantee())


@pytest.mark.parametrize("n", [64, pytest.param(1024, marks=pytest.mark.full("64 is each time"))])
def test_p_values_and_the_walk_are_those_of_mapie(n: int) -> None:
    """Means of powers of two, since MAPIE's ceiling of n x mean is one too high for others."""
    methods = pytest.importorskip("mapie.risk_control.methods")
    control = pytest.importorskip("mapie.risk_control").control_fwer
    risks = np.arange(n + 1) / n
    for delta in (0.02, 0.1, 0.5):
        theirs = methods.compute_hoeffding_bentkus_p_value(risks, n, delta)[:, 0]
        ours = [p_value(zeros_and_ones(k, n), delta) for k in range(n + 1)]
        np.testing.assert_allclose(ours, np.minimum(theirs, 1), rtol=1e-10)
        for epsilon in (0.05, 0.3):
            thresholds = np.linspace(1, 0, n + 1)
            losses = {t: zeros_and_ones(k, n) for k, t in enumerate(thresholds.tolist())}
            if n < Guarantee(delta, epsilon).needed:
                continue
            found = fixed_sequence(list(losses), losses.__getitem__, Guarantee(delta, epsilon))
            passed = control(np.array(ours), epsilon, fwer_method="fixed_sequence")
            assert list(passed) == list(range(len(found.accepted)))
