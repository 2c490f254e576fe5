"""Forecasts that need no model, with normal intervals from their own errors so far.

    naive            x[t]                                   sigma sqrt(h)
    seasonal naive   x[t + h - m ceil(h / m)]               sigma sqrt(ceil(h / m))
    drift            x[t] + h (x[t] - x[0]) / t             sigma sqrt(h (1 + h / t))

t counts from 0. sigma^2 is the mean of the squared one-step errors (of the seasonal one's, those of
a season) up to t: Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition,
sections 5.2 and 5.5. In a gap x[t] is the last value before it. A change over a gap of g steps
counts with its square over g, whose mean is sigma^2 for a random walk; one of a season counts where
both its values are known.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

NAMES = ("naive", "seasonal", "drift")


class Simple(NamedTuple):
    """Forecasts of one kind from several origins."""

    mean: np.ndarray
    """(B, H)"""
    sigma: np.ndarray
    """(B, H) standard deviations"""

    def quantiles(self, levels: tuple[float, ...]) -> np.ndarray:
        """(B, H, Q)"""
        z = np.array([NormalDist().inv_cdf(level) for level in levels])
        return self.mean[..., None] + self.sigma[..., None] * z


class SimpleForecasts:
    """All three, from any origin of one series.

    Args:
        values: (T,) float64, NaN in gaps; the first one is known.
        season: m.
    """

    def __init__(self, values: np.ndarray, season: int) -> None:
        self.values, self.season = filled(values), season
        there = np.flatnonzero(~np.isnan(values))
        squares, changes = np.zeros((2, len(values)))
        squares[there[1:]] = np.diff(values[there]) ** 2 / np.diff(there)
        changes[there[1:]] = 1
        self._squares, self._changes = squares.cumsum(), changes.cumsum()
        self._last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
        seasonal = values[season:] - values[:-season]
        before = np.zeros(min(season, len(values)))

        def sums(of: np.ndarray) -> np.ndarray:
            return np.concatenate((before, np.nan_to_num(of).cumsum()))

        self._seasonal, self._absolute = sums(seasonal**2), sums(np.abs(seasonal))
        self._seasons = sums(~np.isnan(seasonal))

    def at(self, origins: np.ndarray, horizon: int) -> dict[str, Simple]:
        """Forecasts of the ``horizon`` steps after each of the ``origins`` (B,)."""
        x, m = self.values, self.season
        t, h = origins[:, None].astype(np.float64), np.arange(1, horizon + 1)
        turns = -(-h // m)
        back = origins[:, None] + h - m * turns
        slope = (x[origins] - x[0]) / np.maximum(origins, 1)
        squares, changes = self._squares[origins], self._changes[origins]
        # the sum of (change - g slope)^2 / g over the changes up to the last value
        drifting = squares - (2 * origins - self._last[origins]) * slope**2
        once = _root(squares, changes)
        last = x[origins][:, None]
        return {
            "naive": Simple(last + 0.0 * h, once * np.sqrt(h)),
            "seasonal": Simple(
                x[np.where(back < 0, origins[:, None], back)],
                _root(self._seasonal[origins], self._seasons[origins]) * np.sqrt(turns),
            ),
            "drift": Simple(
                last + slope[:, None] * h,
                _root(drifting, changes) * np.sqrt(h * (1 + h / np.maximum(t, 1))),
            ),
        }

    def scale(self, origins: np.ndarray) -> np.ndarray:
        """(B,) mean |x[s] - x[s - m]| up to each origin, which MASE divides by; NaN where the
        series is shorter than a season or did not change."""
        count, sums = self._seasons[origins], self._absolute[origins]
        return np.where(sums > 0, sums / np.maximum(count, 1), np.nan)


def _root(squares: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(B, 1) root of the mean."""
    return np.sqrt(np.maximum(squares, 0) / np.maximum(count, 1))[:, None]


def filled(values: np.ndarray) -> np.ndarray:
    """Values (T,) with the last one before each gap in it; the first one before all."""
    there = np.flatnonzero(~np.isnan(values))
    at = np.searchsorted(there, np.arange(len(values)), side="right") - 1
    return values[there[at.clip(0)]]
