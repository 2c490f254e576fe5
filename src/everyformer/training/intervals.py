"""Intervals of 95%: of a ratio over rows, and of a share of independent trials."""

import math

Z = 1.959963984540054
"""half-width of a 95% interval in standard errors"""


def ratio(
    rows: float, n: float, nn_: float, s: float, ss: float, sn: float
) -> tuple[float, list[float] | None]:
    """sum s / sum n with its normal interval: the linearised variance of a ratio over rows.

    One row has no interval, nor has a sum that is not finite.
    """
    mean = s / n
    if rows < 2 or not math.isfinite(s):
        return mean, None
    spread = max(0.0, ss - 2 * mean * sn + mean * mean * nn_) * rows / (rows - 1)
    half = Z * math.sqrt(spread) / n
    return mean, [mean - half, mean + half]


def perplexity(loss: float) -> float:
    """e^loss; infinite where that is no longer a floating-point number."""
    return math.inf if loss >= 709 else math.exp(loss)


def wilson(hits: float, n: float) -> list[float]:
    """Wilson's interval of a share of ``n`` independent trials."""
    share, square = hits / n, Z * Z / n
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / n + square / (4 * n))
    return [centre - half, centre + half]
