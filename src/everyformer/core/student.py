"""Student's distribution: intervals of means of few values, and how surely two means differ."""

import functools
import math
import operator
import statistics
from collections.abc import Sequence

POINTS = 500
"""of a numerical integral"""
MANY = 1000
"""degrees of freedom above which the normal distribution stands for Student's (0.1% narrower)"""


def mean_interval(values: Sequence[float], level: float = 0.95) -> list[float]:
    """The interval of the mean of at least two values at a level."""
    n, mean = len(values), statistics.mean(values)
    half = quantile(n - 1, level) * statistics.stdev(values) / math.sqrt(n)
    return [mean - half, mean + half]


def p_value(values: Sequence[float]) -> float:
    """Probability of a mean as far from 0 as that of these (at least two), where it is 0."""
    n, mean, spread = len(values), statistics.mean(values), statistics.stdev(values)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    return 1 - within(abs(mean) * math.sqrt(n) / spread, n - 1)


def within(t: float, degrees: int) -> float:
    """The share of the distribution between -t and t, for 1, 2, ... degrees of freedom.

    With angle a = atan(t / sqrt(n)) it is, of odd n,
    2 / pi (a + sin a (cos a + 2/3 cos^3 a + ... up to cos^(n-2))), and of even n
    sin a (1 + 1/2 cos^2 a + 1 3 / (2 4) cos^4 a + ...): Abramowitz and Stegun 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@functools.cache
def quantile(degrees: int, level: float = 0.95) -> float:
    """The t with a share of ``level`` between -t and t."""
    if degrees > MANY:
        return statistics.NormalDist().inv_cdf((1 + level) / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        below = within(math.sqrt(degrees) * math.tan(middle), degrees) < level
        low, high = (middle, high) if below else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def power(shift: float, count: int, level: float = 0.95) -> float:
    """Probability that ``count`` values of this mean, in deviations, are distinguished from 0.

    With k = count - 1 degrees of freedom and s the ratio of the deviation that is measured to the
    true one, whose density goes with s^(k-1) exp(-k s^2 / 2), it is the mean over s of
    Phi(shift sqrt(count) - s t) + Phi(-shift sqrt(count) - s t).
    """
    k, t, away = count - 1, quantile(count - 1, level), abs(shift) * math.sqrt(count)
    wide = 1 + 8 / math.sqrt(2 * k)
    ratios = [wide * (n + 0.5) / POINTS for n in range(POINTS)]
    logs = [(k - 1) * math.log(s) - k * (s * s - 1) / 2 for s in ratios]
    weights = [math.exp(each - max(logs)) for each in logs]
    normal = statistics.NormalDist().cdf
    chances = (normal(away - s * t) + normal(-away - s * t) for s in ratios)
    return math.fsum(map(operator.mul, weights, chances)) / math.fsum(weights)
