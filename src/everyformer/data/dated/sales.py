"""The built-in 'sales': made series of days with a trend, a week, offers known ahead, and gaps."""

import datetime

import numpy as np

from everyformer.data.dated.series import DatedSeries
from everyformer.data.dated.times import DAY, Step

STORES, DAYS = 24, 730
AHEAD = 28
"""days after the last number whose offers are known"""
BEGIN = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC).timestamp()
MISSING, OFFERED = 0.01, 0.08
"""part of the days without a number, and with an offer"""


def sales(seed: int) -> DatedSeries:
    """Poisson numbers with the mean level (1 + trend t) week[t mod 7] (1 + lift offer[t]) e^noise;
    every store has its own, and a fifth sell little and often nothing."""
    random = np.random.default_rng((seed, 14))
    level = np.where(np.arange(STORES) % 5 == 4, 0.6, random.uniform(20, 400, STORES))[:, None]
    t = np.arange(DAYS + AHEAD)
    trend = 1 + random.uniform(-0.3, 0.8, (STORES, 1)) * t / DAYS
    week = random.uniform(0.6, 1.4, (STORES, 7))[:, t % 7]
    offers = random.random((STORES, len(t))) < OFFERED
    lift = 1 + random.uniform(0.3, 0.9, (STORES, 1)) * offers
    noise = np.exp(0.12 * random.standard_normal((STORES, len(t))))
    values = random.poisson(level * trend * week * lift * noise).astype(np.float64)
    values[:, 1 : DAYS - 1][random.random((STORES, DAYS - 2)) < MISSING] = np.nan
    values[:, DAYS:] = np.nan
    bounds = np.arange(STORES + 1) * len(t)
    return DatedSeries(
        names=tuple(f"store {number}" for number in range(1, STORES + 1)),
        bounds=bounds,
        ends=bounds[1:] - AHEAD,
        times=np.tile(BEGIN + t * DAY, STORES).astype(np.float64),
        values=values.ravel(),
        known=offers.reshape(-1, 1).astype(np.float64),
        past=np.empty((values.size, 0)),
        covariates=("offer",),
        step=Step("second", float(DAY)),
        notes=("made by chance", "'offer' is known ahead"),
    )
