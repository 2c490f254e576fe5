"""Scales of series, in which a model reads and foretells them."""

from dataclasses import dataclass

import numpy as np

from everyformer.data.dated.series import DatedSeries


@dataclass(frozen=True, eq=False)
class Scales:
    """Scales of every series, (N,) float64 each, from its steps before the held-out ones."""

    mean: np.ndarray
    deviation: np.ndarray
    unit: np.ndarray
    """mean change over a season, of values that are known"""
    ends: np.ndarray
    """one after the last step that they were read from: forecasts are checked after it"""

    @classmethod
    def of(
        cls, series: DatedSeries, train_ends: np.ndarray, season: int, horizon: int = 0
    ) -> "Scales":
        """Of a series with too short a training part, from its first steps: those of a season, of
        which a ``horizon`` is left at the end."""
        rows = []
        for start, end, train in zip(series.bounds, series.ends, train_ends, strict=False):
            last = train
            if train - start < max(2, season + 1):
                last = min(end, start + max(2, min(season + 2, end - start - horizon)))
            values = series.values[start:last]
            lag = season if len(values) > season else 1
            changes = np.abs(values[lag:] - values[:-lag])
            change = float(changes.mean(where=known)) if (known := ~np.isnan(changes)).any() else 0
            deviation = float(np.nanstd(values)) or max(abs(float(np.nanmax(values))), 1.0)
            rows.append((float(np.nanmean(values)), deviation, change or deviation, last))
        found = np.array(rows).reshape(-1, 4)
        return cls(found[:, 0], found[:, 1], found[:, 2], found[:, 3].astype(np.int64))
