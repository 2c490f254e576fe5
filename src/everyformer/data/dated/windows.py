"""`ForecastDataset`: what a model reads of series step by step, and what it is to foretell.

At step t of a series, with season m and scales of its training part (mean, deviation s, and u, the
mean of |x[t] - x[t-m]| where both are known):

    inputs     (x[t] - mean) / s,  (x[t] - x[t-1]) / u,  (x[t] - x[t-m]) / u,  1 if x[t] is known,
               sine and cosine of the time within day, week and year, covariates seen with x[t],
               covariates known ahead of t + 1 ... t + H
    reference  r[h] = x[t + h - m ceil(h / m)], the seasonal naive forecast
    targets    (x[t + h] - r[h]) / u for h = 1 ... H, NaN where it is not known

A missing value is the last one before it. Forecasts in units of the data are r + u z.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from everyformer.core.config import to_dict
from everyformer.core.errors import DataError
from everyformer.core.rounding import shortened
from everyformer.core.wording import counted, few
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.dataset import OrderedDataset, Spread
from everyformer.data.dated.scales import Scales
from everyformer.data.dated.series import DatedSeries
from everyformer.data.dated.simple import SimpleForecasts, filled
from everyformer.data.dated.times import DAY, written
from everyformer.data.selection import spread

HORIZON = 10
"""steps ahead where nothing is said and series have no season"""
CONTEXT = 32
"""steps that are read at least, where nothing is said"""
CYCLES = (DAY, 7 * DAY, 365.2425 * DAY)
"""seconds of the cycles whose phase is read, of steps that are shorter"""


@dataclass(frozen=True, kw_only=True, eq=False)
class ForecastDataset(OrderedDataset):
    """Windows of ``length`` steps; those of training may hold ends and beginnings of series."""

    series: DatedSeries
    train_ends: np.ndarray
    """(N,) one after the last step of each series that is trained on"""
    horizon: int
    """H"""
    season: int
    """m; 1: none is known"""
    stride: int
    """steps from one held-out origin to the next"""
    scales: Scales

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        count = self.training_rows(len(self._train))
        starts = np.random.default_rng((seed, step)).integers(0, count - self.length + 1, size)
        # rows begin with an empty state: the start of a series at the first step is no other one
        batch = self._windows(starts, portion, self._begin_in(starts + 1, self.length - 1))
        if batch.documents is None:
            return batch
        return replace(batch, documents=batch.documents - batch.documents[:, :1])

    def segment(self, step: int, size: int, portion: Portion = WHOLE) -> Batch:
        count = self.training_rows(len(self._train))
        starts = (np.arange(size) * count // size + step * self.length) % count
        return self._windows(starts, portion, self._begin_in(starts, self.length))

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """A row for each held-out origin, its last step: the steps up to it and its H targets."""
        origins = self.origins[spread(len(self.origins), limit)]
        for first in range(0, len(origins), size):
            yield self.before(origins[first : first + size])

    def warmed(
        self, size: int, limit: int | None, before: int
    ) -> Iterator[tuple[list[Batch], Batch]]:
        for batch in self.validation_batches(size, limit):
            assert batch.origins is not None
            yield self.ahead_of(batch.origins.numpy(), before), batch

    def ahead_of(self, origins: np.ndarray, segments: int) -> list[Batch]:
        """Up to so many segments that lie before those of `before`, the earliest first."""
        most = int((origins - self._starts[self._owner[origins]]).max()) // self.length
        backs = range(min(segments, most), 0, -1)
        return [self.before(origins, back * self.length) for back in backs]

    def before(self, origins: np.ndarray, back: int = 0) -> Batch:
        """(B, length) the steps up to ``back`` before each of the ``origins``; the targets are
        those of the origins, where they are the last step. Nothing before a series is real."""
        positions = origins[:, None] - back + np.arange(1 - self.length, 1)
        first = self._starts[self._owner[origins]][:, None]
        keep = torch.from_numpy(positions >= first)
        positions = np.maximum(positions, first)
        targets = np.full((*positions.shape, self.horizon), np.nan, dtype=np.float32)
        if not back:
            targets[:, -1] = self._targets(origins, self._ends[self._owner[origins]])
        return Batch(
            torch.from_numpy(self._inputs(positions)),
            torch.from_numpy(targets),
            None if bool(keep.all()) else keep,
            origins=torch.from_numpy(origins),
            ahead=True,
        )

    @cached_property
    def origins(self) -> np.ndarray:
        """The held-out steps from which forecasts are made: all their H targets are held out, come
        after the steps that scales were read from, and one at least is known."""
        firsts = np.maximum(self.train_ends, self.scales.ends)
        found = [
            np.arange(max(first, start + 2) - 1, end - self.horizon, self.stride)
            for start, first, end in zip(self._starts, firsts, self._ends, strict=True)
        ]
        origins = np.concatenate(found).astype(np.int64)
        return origins[~np.isnan(self.truth(origins)).all(1)]

    def truth(self, origins: np.ndarray) -> np.ndarray:
        """(B, H) values after each origin; NaN where there is none."""
        at = origins[:, None] + np.arange(1, self.horizon + 1)
        inside = at < self._ends[self._owner[origins]][:, None]
        return np.where(inside, self.series.values[np.minimum(at, len(self._owner) - 1)], np.nan)

    def reference(self, origins: np.ndarray) -> np.ndarray:
        """(..., H) seasonal naive forecasts; the last value where there is no season before."""
        h = np.arange(1, self.horizon + 1)
        back = origins[..., None] + h - self.season * -(-h // self.season)
        first = self._starts[self._owner[origins]][..., None]
        return self._filled[np.where(back < first, origins[..., None], back)]

    def units(self, origins: np.ndarray) -> np.ndarray:
        """(...) u of the series of each origin."""
        return self.scales.unit[self._owner[origins]]

    def in_units(self, z: np.ndarray, origins: np.ndarray) -> np.ndarray:
        """(B, H, Q) forecasts r + u z."""
        units = self.units(origins)[:, None, None]
        return self.reference(origins)[..., None] + units * z

    def spread(self) -> Spread:
        """Means and deviations of what is read of a step: of covariates those of the training part,
        0 and 1 of all that is already in units of its series."""
        seen = np.concatenate((self.series.past, self.series.known), 1)
        seen = seen[self._train] if len(self._train) else seen
        count = np.maximum((~np.isnan(seen)).sum(0), 1)
        mean = np.nansum(seen, 0) / count
        deviation = np.sqrt(np.nansum((seen - mean) ** 2, 0) / count)
        deviation = np.where(deviation > 0, deviation, 1.0)
        own, past = self._steps.shape[1] - self.series.past.shape[1], self.series.past.shape[1]
        parts = [
            np.concatenate((np.full(own, rest), of[:past], np.tile(of[past:], self.horizon)))
            for rest, of in ((0.0, mean), (1.0, deviation))
        ]
        return Spread(*(tuple(part.tolist()) for part in parts))

    def misfit(self, step: str | None, numbers: int) -> str | None:
        """Why a model that was trained on series with values so often (None: not known), and reads
        so many numbers a step, cannot read these; None where it can."""
        often = str(self.series.step)
        if step not in (None, often):
            return (
                f"the series of {self.name} have values {often}, but the model was trained on such "
                f"that have them {step}: give those, or train another one"
            )
        given = len(self.spread().mean)
        if given == numbers:
            return None
        return (
            f"{self.name} gives {given} numbers a step, with the covariates "
            f"{few(self.series.covariates) or 'none'}, but the model reads {numbers}: give a table "
            "with the columns of its training data"
        )

    def simple(self, number: int) -> SimpleForecasts:
        """Forecasts of series ``number`` without a model; its steps count from 0."""
        start, end = self._starts[number], self._ends[number]
        return SimpleForecasts(self.series.values[start:end], self.season)

    def owner(self, origins: np.ndarray) -> np.ndarray:
        """(...) the number of the series of each step."""
        return self._owner[origins]

    @property
    def shape_options(self) -> dict[str, Any]:
        return {"horizon": self.horizon}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "horizon": self.horizon,
            "season": self.season,
            "step": str(self.series.step),
            "covariates": list(self.series.covariates),
            "columns": to_dict(self.series.columns),
        }

    @property
    def _starts(self) -> np.ndarray:
        return self.series.bounds[:-1]

    @property
    def _ends(self) -> np.ndarray:
        return self.series.ends

    @cached_property
    def _owner(self) -> np.ndarray:
        """(M,) the number of the series of each step."""
        return np.repeat(np.arange(len(self.series.names)), np.diff(self.series.bounds))

    @cached_property
    def _train(self) -> np.ndarray:
        """Steps that are trained on, series after series."""
        pairs = zip(self._starts, self.train_ends, strict=True)
        return np.concatenate([np.arange(start, end) for start, end in pairs])

    @cached_property
    def _begun(self) -> np.ndarray:
        """Where in them a series begins."""
        return np.flatnonzero(self._train == self._starts[self._owner[self._train]])

    @cached_property
    def _filled(self) -> np.ndarray:
        bounds = self.series.bounds
        return np.concatenate(
            [filled(self.series.values[a:b]) for a, b in itertools.pairwise(bounds)]
        )

    @cached_property
    def _steps(self) -> np.ndarray:
        """(M, C) floats, what is read of each step but what is known ahead of later ones."""
        x, owner = self._filled, self._owner
        mean, deviation = self.scales.mean[owner], self.scales.deviation[owner]
        columns = [(x - mean) / deviation]
        for lag in dict.fromkeys((1, self.season)):
            at = np.arange(len(x)) - lag
            there = at >= self._starts[owner]
            columns.append(np.where(there, x - x[at.clip(0)], 0.0) / self.scales.unit[owner])
        columns.append(~np.isnan(self.series.values))
        columns += self._phases()
        own = np.column_stack(columns).astype(np.float32)
        return np.concatenate((own, shortened(self.series.past)), 1)

    @cached_property
    def _known(self) -> np.ndarray:
        """(M, K) floats, the covariates that are known ahead."""
        return shortened(self.series.known)

    def _phases(self) -> list[np.ndarray]:
        step, times = self.series.step, self.series.times
        if not step.dated:
            within = np.arange(len(times)) - self._starts[self._owner]
            turns = [within / self.season] if self.season > 1 else []
        else:
            size = {"month": 30.4 * DAY, "weekday": float(DAY)}.get(step.unit, 1.0) * step.count
            turns = [times / cycle for cycle in CYCLES if size < cycle]
        return [wave(2 * np.pi * turn) for turn in turns for wave in (np.sin, np.cos)]

    def _inputs(self, positions: np.ndarray) -> np.ndarray:
        """(B, L, C + K H) of the steps at ``positions`` (B, L)."""
        own, known = self._steps[positions], self._known
        if not known.shape[1]:
            return own
        at = positions[..., None] + np.arange(1, self.horizon + 1)
        inside = at < self.series.bounds[1:][self._owner[positions]][..., None]
        ahead = np.where(inside[..., None], known[np.minimum(at, len(known) - 1)], np.nan)
        ahead = ahead.astype(known.dtype).reshape(*positions.shape, -1)
        return np.concatenate((own, ahead), -1)

    def _targets(self, positions: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """(..., H) float32 of steps, of values before ``ends`` (...)."""
        at = positions[..., None] + np.arange(1, self.horizon + 1)
        values = self.series.values[np.minimum(at, len(self._owner) - 1)]
        values = np.where(at < ends[..., None], values, np.nan)
        off = (values - self.reference(positions)) / self.units(positions)[..., None]
        return off.astype(np.float32)

    def _windows(self, starts: np.ndarray, portion: Portion, several: bool) -> Batch:
        """Windows of the training part from the ``portion`` of ``starts`` (B,) on; a series is a
        document, where there are ``several`` in any row."""
        own = starts[slice(*portion.of(len(starts))), None]
        positions = self._train[(own + np.arange(self.length)) % len(self._train)]
        owner = self._owner[positions]
        begins = torch.from_numpy(positions == self._starts[owner])
        return Batch(
            torch.from_numpy(self._inputs(positions)),
            torch.from_numpy(self._targets(positions, self.train_ends[owner])),
            documents=begins.long().cumsum(1) if several else None,
            ahead=True,
        )

    def _begin_in(self, starts: np.ndarray, length: int) -> bool:
        """True if a series begins within ``length`` training steps from any of ``starts`` on."""
        count = len(self._train)
        at = starts % count
        later = np.searchsorted(self._begun, at)
        following = np.append(self._begun, self._begun[0] + count)[later]
        return bool((following - at < length).any())


def forecast_dataset(series: DatedSeries, config: DataConfig, name: str) -> ForecastDataset:
    """Series as data of a run, with the steps after one time held out.

    Raises:
        DataError: the horizon is longer than the series.
    """
    season = config.season or series.step.season
    lengths = series.ends - series.bounds[:-1]
    horizon = config.horizon or (season if season > 1 else HORIZON)
    if horizon > lengths.max() - 2:
        raise DataError(
            f"the longest series of '{config.source}' has {lengths.max():,} steps, too few to hold "
            f"out {horizon:,} and have two before them: give a smaller --horizon, or more of the "
            "past"
        )
    train_ends, words = _cut(series, config, horizon)
    trained = int((train_ends - series.bounds[:-1]).sum())
    context = config.context or max(3 * season, 4 * horizon, CONTEXT)
    scales = Scales.of(series, train_ends, season, horizon)
    result = ForecastDataset(
        name=name,
        task="forecast",
        kind="series",
        vocabulary=256,
        length=min(context, trained) if trained else context,
        split="",
        fingerprint=digest(
            *(part.tobytes() for part in (series.values, series.times, series.known, series.past)),
            *(series.names, train_ends.tolist(), horizon, season, config.stride, config.context),
        ),
        series=series,
        train_ends=train_ends,
        horizon=horizon,
        season=season,
        stride=config.stride or horizon,
        scales=scales,
    )
    result = replace(result, features=result.spread())
    seasonal = f"a season of {season}" if season > 1 else "no season"
    parts = [
        f"{series.values_at} ({few(series.names)}), {seasonal}, {horizon} steps ahead",
        f"{words}: {trained:,} steps to learn from, "
        f"{counted(len(result.origins), 'forecast')} to check",
        *series.notes,
        *_doubts(result),
    ]
    return replace(result, split="; ".join(parts))


def _cut(series: DatedSeries, config: DataConfig, horizon: int) -> tuple[np.ndarray, str]:
    """(N,) where the held-out part of each series begins, the same time of all; and words."""
    starts, ends, times = series.bounds[:-1], series.ends, series.times
    if config.validation == 1:
        return starts.copy(), "all is held out"
    inside = np.concatenate([times[a:b] for a, b in zip(starts, ends, strict=True)])
    at = float(np.quantile(inside, 1 - config.validation, method="higher"))
    # so many that the longest one is forecast once at least
    longest = int((ends - starts).argmax())
    at = min(at, float(times[ends[longest] - horizon]))
    cut = [a + np.searchsorted(times[a:b], at) for a, b in zip(starts, ends, strict=True)]
    when = written(np.array([at]), series.step.dated, series.step.zoned)[0]
    return np.array(cut, dtype=np.int64), f"all steps from {when} on are held out"


def _doubts(dataset: ForecastDataset) -> list[str]:
    """Remarks on series that cannot be measured or learned from, half a sentence each."""
    series, result = dataset.series, []
    starts, ends = series.bounds[:-1], series.ends
    checked = set(dataset.owner(dataset.origins).tolist())
    if unchecked := len(series.names) - len(checked):
        result.append(f"{unchecked:,} of the series end too early to be checked, or are too short")
    still = [
        name
        for name, a, b in zip(series.names, starts, ends, strict=True)
        if np.nanmax(series.values[a:b]) == np.nanmin(series.values[a:b])
    ]
    if still:
        result.append(f"{few(still)} never change{'s' * (len(still) == 1)}, so MASE is undefined")
    return result
