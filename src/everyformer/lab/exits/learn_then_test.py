"""Learn-then-Test: which thresholds keep the risk below delta, at error probability epsilon.

A threshold lambda is tried on n prompts, drawn independently; prompt i loses L_i in [0, 1], with
mean R = (L_1 + ... + L_n) / n and unknown risk E L. Under the null hypothesis, E L > delta, a
p-value satisfies P[p <= u] <= u:

    hoeffding           p = exp(-2 n max(0, delta - R)^2)
    hoeffding-bentkus   p = min(exp(-n h(min(R, delta), delta)), e B(ceil(n R)))
    binomial            p = B(n R)                           losses of 0 and 1 alone

    h(a, b) = a ln(a / b) + (1 - a) ln((1 - a) / (1 - b))
    B(k)    = P[Bin(n, delta) <= k] = sum_{i <= k} C(n, i) delta^i (1 - delta)^(n - i)

h is the sharper form of Hoeffding's inequality, the square is Pinsker's bound of it. Losses are
summed, never averaged and multiplied again: 100 x 0.29 is 28.999... in floating point, and the p of
28 violations instead of 29 guarantees nothing.

Thresholds lambda_1 > lambda_2 > ... are chosen before any loss is seen, and walked from the safest
on while p <= epsilon; the walk ends at the first that fails. The first true null ends it with
probability at least 1 - epsilon, so that some accepted threshold is wrong with probability at most
epsilon, however many there are. Several measures share one epsilon: split it between them.

delta and epsilon are Learn-then-Test's alpha and delta. B is computed here, in ten lines, because
the library installs without scipy, whose hundred megabytes would serve this one sum.

Sources: Angelopoulos et al. 2021, arXiv 2110.01052; Schuster et al. 2022, arXiv 2207.07061, section
4; Bates et al. 2021, arXiv 2101.02703 (Hoeffding-Bentkus).
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from everyformer.core.bounds import Between, Count, Share
from everyformer.core.config import Options, OutOfBoundsError, converted
from everyformer.core.errors import ConfigError, DataError

PValue = Literal["hoeffding-bentkus", "binomial", "hoeffding"]
Losses = Sequence[float] | np.ndarray
"""of n prompts, each in [0, 1]"""

MOST_PROMPTS = 2**62
"""which nobody has: as many as are searched for the least number that could pass"""


@dataclass(frozen=True)
class Guarantee(Options):
    """The promise of a threshold: P[its risk <= delta] >= 1 - epsilon."""

    delta: Between = 0.05
    """the risk that is tolerated: the mean loss of a prompt, in the metric's unit"""
    epsilon: Between = 0.05
    """the probability, over draws of calibration prompts, that the risk exceeds delta after all"""
    p_value: PValue = "hoeffding-bentkus"
    """the test: hoeffding-bentkus and hoeffding for losses in [0, 1], binomial for 0 and 1 alone"""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except OutOfBoundsError as error:
            raise OutOfBoundsError(
                f"{error}; delta is the mean loss that is tolerated, epsilon the probability that "
                "it is exceeded after all"
            ) from error

    @property
    def needed(self) -> int:
        """The least number of prompts that can pass at all: p <= epsilon without a single loss.

        That is ln epsilon / ln(1 - delta), for hoeffding ln(1 / epsilon) / (2 delta^2), rounded up
        and no more than 2^62.
        """
        p = P_VALUES[self.p_value]
        # asked of the p-value itself, so that no rounding comes between this number and the test
        ns = range(1, MOST_PROMPTS)
        return 1 + bisect.bisect_left(ns, True, key=lambda n: p(0.0, n, self.delta) <= self.epsilon)


@dataclass(frozen=True)
class SequenceStep(Options):
    """One threshold, tested."""

    threshold: Share
    risk: Share
    """the mean loss of the prompts"""
    p: Share
    """the p-value of the null that the risk is above delta"""


@dataclass(frozen=True, kw_only=True)
class FixedSequence(Guarantee):
    """The result of the fixed sequence test."""

    n: Count
    """prompts"""
    steps: tuple[SequenceStep, ...]
    """from the safest on; those behind the first failure are pictures, not tests"""

    @property
    def accepted(self) -> tuple[SequenceStep, ...]:
        """The steps before the first failure."""
        return tuple(itertools.takewhile(lambda step: step.p <= self.epsilon, self.steps))

    @property
    def threshold(self) -> float | None:
        """The last that passed; None if the first failed: never exit."""
        return self.accepted[-1].threshold if self.accepted else None


def fixed_sequence(
    thresholds: Sequence[float],
    losses: Callable[[float], Losses],
    guarantee: Guarantee,
    *,
    to_the_end: bool = False,
) -> FixedSequence:
    """Test thresholds from the safest on, to the first that fails.

    Args:
        thresholds: in [0, 1], falling, chosen before any loss was seen.
        losses: those of all prompts at a threshold, the same prompts each time; computed
            thresholds in order, and only as far as the walk goes.
        to_the_end: whether to ask behind the first failure too, for a picture: nothing there is
            accepted.

    Raises:
        ConfigError: no thresholds, or they do not fall, or lie outside [0, 1].
        DataError: losses outside [0, 1], between 0 and 1 for the binomial test, of fewer prompts
            than it takes to accept anything, or of another number than before.
    """
    thresholds = _in_order(thresholds)
    n = 0
    steps: list[SequenceStep] = []
    for threshold in thresholds:
        values = _checked(losses(threshold), guarantee.p_value)
        if not steps:
            n = len(values)
            require_enough(n, guarantee)
        elif len(values) != n:
            raise DataError(
                f"threshold {threshold:g} has losses of {len(values):,} prompts, but the first one "
                f"of {n:,}: all must be tried on the same prompts"
            )
        total = math.fsum(values)
        p = P_VALUES[guarantee.p_value](total, n, guarantee.delta)
        steps.append(SequenceStep(threshold, total / n, p))
        if steps[-1].p > guarantee.epsilon and not to_the_end:
            break
    return FixedSequence(
        delta=guarantee.delta,
        epsilon=guarantee.epsilon,
        p_value=guarantee.p_value,
        n=n,
        steps=tuple(steps),
    )


def require_enough(n: int, guarantee: Guarantee) -> None:
    """Refuse a calibration that could accept nothing, before anything is generated for it.

    Raises:
        DataError: fewer prompts than are `Guarantee.needed`; names that number.
    """
    if n < guarantee.needed:
        raise DataError(
            f"calibration has {n:,} prompts, but `delta={guarantee.delta:g}` at "
            f"`epsilon={guarantee.epsilon:g}` needs at least {guarantee.needed:,} by "
            f"'{guarantee.p_value}', even where no prompt loses anything: give more, or a larger "
            "`delta` or `epsilon`"
        )


def _hoeffding(total: float, n: int, delta: float) -> float:
    """p-value of losses that sum to ``total``."""
    return math.exp(-2 * n * max(0.0, delta - total / n) ** 2)


def _hoeffding_bentkus(total: float, n: int, delta: float) -> float:
    """p-value of losses that sum to ``total``; at most 1, since h >= 0.

    The ceiling of a rounded sum is safe: Bentkus' bound, B interpolated log-linearly, changes by
    no more than the rounding where B jumps.
    """
    if total == 0:  # exp(-n h(0, delta)) = (1 - delta)^n, which rounds less as a power
        return binomial_tail(0, n, delta)
    bentkus = math.e * binomial_tail(math.ceil(total), n, delta)
    return min(math.exp(-n * _divergence(min(total / n, delta), delta)), bentkus)


def _binomial(total: float, n: int, delta: float) -> float:
    """p-value of ``total`` violations among n, a whole number."""
    return binomial_tail(int(total), n, delta)


P_VALUES: dict[PValue, Callable[[float, int, float], float]] = {
    "hoeffding-bentkus": _hoeffding_bentkus,
    "binomial": _binomial,
    "hoeffding": _hoeffding,
}
"""by name: of the sum of n losses, n and delta"""


def binomial_tail(k: int, n: int, delta: float) -> float:
    """P[Bin(n, delta) <= k], 0 <= k <= n; O(n), to ten digits at n = 10^6.

    Terms are products of their ratios C(n, i) / C(n, i - 1) delta / (1 - delta), as logarithms
    from the largest term on both ways: none overflows, and their sum norms them.
    """
    if k == 0:
        return float((1 - delta) ** n)
    i = np.arange(1, n + 1)
    log_ratios = np.log((n + 1 - i) / i) + (math.log(delta) - math.log1p(-delta))
    mode = min(n, int((n + 1) * delta))
    falling = np.cumsum(-log_ratios[:mode][::-1])[::-1]
    sums = np.exp(np.concatenate([falling, [0.0], np.cumsum(log_ratios[mode:])])).cumsum()
    return float(sums[k] / sums[-1])


def _divergence(a: float, b: float) -> float:
    """h(a, b) for 0 <= a <= b, which rounding makes negative where a is near b."""
    first = a * math.log(a / b) if a > 0 else 0.0
    return max(0.0, first + (1 - a) * math.log((1 - a) / (1 - b)))


def _in_order(thresholds: Sequence[float]) -> tuple[float, ...]:
    """Thresholds that a fixed sequence may walk."""
    result: tuple[float, ...] = converted(tuple[Share, ...], thresholds, "thresholds")
    if not result:
        raise ConfigError("`thresholds` is empty: give at least one in [0, 1]")
    for safer, next_one in itertools.pairwise(result):
        if next_one >= safer:
            raise ConfigError(
                f"`thresholds` must fall, the safest first, but {safer:g} is followed by "
                f"{next_one:g}"
            )
    return result


def _checked(losses: Losses, kind: PValue) -> np.ndarray:
    """Losses of prompts as (n,) float64, refused where the p-value does not hold for them."""
    values = np.asarray(losses, dtype=np.float64)
    binary = kind == "binomial"
    fitting = (values == 0) | (values == 1) if binary else (values >= 0) & (values <= 1)
    if not fitting.all():
        first = int(np.argmin(fitting))
        expected = (
            "0 or 1 for the binomial test; take --p-value hoeffding-bentkus"
            if binary
            else "in [0, 1], for which alone the test holds: choose a metric with these bounds"
        )
        raise DataError(f"the loss of prompt {first} is {values[first]:g}, but must be {expected}")
    return values
