"""Forecasts of a trained run: the next values of series, and values that were not expected."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everyformer.core.devices import forked_random
from everyformer.core.errors import ConfigError, DataError, DivergedError, UnsupportedError
from everyformer.core.tasks import TASKS
from everyformer.core.wording import few
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dated.series import DatedSeries, read_series
from everyformer.data.dated.times import written
from everyformer.data.dated.windows import ForecastDataset, Scales
from everyformer.data.sources import open_source
from everyformer.models.base import Model, evaluating
from everyformer.training.reading import segments_ahead
from everyformer.training.saved import load_model, trained_on
from everyformer.training.storage import check_finite
from everyformer.training.warmstart import read_start


@dataclass(frozen=True)
class Forecast:
    """The next values of one series."""

    series: str
    times: tuple[str, ...]
    """of the H steps, as they are written; plain numbers as text"""
    levels: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...]
    """of each step, in the order of the levels"""

    @property
    def values(self) -> tuple[float, ...]:
        """The forecast of each step, its median."""
        at = self.levels.index(0.5)
        return tuple(row[at] for row in self.quantiles)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row a step, as it is written to a file."""
        for time, value, row in zip(self.times, self.values, self.quantiles, strict=True):
            known = {f"q{level:g}": one for level, one in zip(self.levels, row, strict=True)}
            yield {"series": self.series, "time": time, "forecast": value, **known}


@dataclass(frozen=True)
class Judged:
    """One value beside what was expected of it a step before."""

    series: str
    time: str
    value: float
    low: float
    high: float
    """the outermost quantiles"""
    echo: bool = False
    """whether it leaves its interval on the other side than the value a season before did, which
    this interval follows"""

    @property
    def unexpected(self) -> bool:
        """True where the value leaves the interval."""
        return not self.low <= self.value <= self.high

    def row(self) -> dict[str, Any]:
        """One row of a file."""
        return {**dataclasses.asdict(self), "anomaly": self.unexpected}


class SeriesReader:
    """A trained forecaster, with what it needs to read series.

    Args:
        model: of the task forecast.
        data: how its tables are read (default: by their headers).
        step: how often its series have values, in words; others are refused.
        length: steps that are read of a series (default: as many as the model takes).
        columns: options that chose the columns of its training's table; another that has all of
            these is read so too.
        fingerprint: of the data that it was trained on.

    Raises:
        UnsupportedError: a model of another task.
    """

    def __init__(
        self,
        model: Model,
        *,
        data: DataConfig | None = None,
        step: str | None = None,
        length: int | None = None,
        columns: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.model, self.config = model, model.config
        if not TASKS[self.config.task].forecasts:
            raise UnsupportedError(
                f"a model of the task '{self.config.task}' forecasts nothing: `predict` answers "
                "rows, `generate` goes on with texts"
            )
        self.data = data or DataConfig()
        self.step, self.columns = step, columns
        self.length, self.fingerprint = length or self.config.tokens, fingerprint

    @classmethod
    def load(
        cls, path: str | Path, average: int | None = None, device: str = "auto"
    ) -> "SeriesReader":
        """The best weights of the run at ``path``, or the model that was saved there.

        Args:
            average: the mean over a run's newest so many checkpoints instead.
            device: where it is computed; auto: an accelerator if there is one.

        Raises:
            CheckpointError: nothing is there, or it is damaged.
            DivergedError: its weights are not finite.
        """
        start = read_start(path)
        model = load_model(path, average=average, device=device)
        assert isinstance(model, Model)
        check_finite(model, start.path)
        facts = start.values.get("data", {})
        return cls(
            model,
            data=trained_on(start.values),
            columns=facts.get("columns"),
            step=facts.get("step"),
            length=facts.get("length"),
            fingerprint=facts.get("fingerprint"),
        )

    def read(self, source: str | None = None) -> ForecastDataset:
        """The series of a table as the model reads them, all of them known; None: the run's own.

        Raises:
            DataError: other columns or another frequency than it was trained with.
        """
        config = self.data if source is None else dataclasses.replace(self.data, source=source)
        if source is None:
            own = load_dataset(config, self.config.task, stored=config)
            assert isinstance(own, ForecastDataset)
            series, name = own.series, own.name
        else:
            with open_source(source, config.encoding) as opened:
                series, name = read_series(opened, config, self.columns), opened.name
        season = config.season or series.step.season
        made = ForecastDataset(
            name=name,
            task="forecast",
            kind="series",
            vocabulary=256,
            length=self.length,
            split="",
            fingerprint="",
            series=series,
            train_ends=series.ends,
            horizon=self.config.horizon,
            season=season,
            stride=1,
            scales=Scales.of(series, series.ends, season),
        )
        if (fault := made.misfit(self.step, self.config.series or 0)) is not None:
            raise DataError(fault)
        return made

    def forecasts(self, data: ForecastDataset, batch: int = 16) -> list[Forecast]:
        """The next H values of every series.

        Raises:
            DataError: a covariate that is known ahead lacks values for these steps.
            DivergedError: the model gives no finite numbers.
        """
        series, horizon = data.series, data.horizon
        self._require_known(series)
        results = []
        for first in range(0, len(series.names), batch):
            chosen = np.arange(first, min(first + batch, len(series.names)))
            origins = series.ends[chosen] - 1
            made = self.quantiles(data, origins)
            for number, origin, quantiles in zip(chosen, origins, made, strict=True):
                ahead = series.step.after(float(series.times[origin]), np.arange(1, horizon + 1))
                results.append(
                    Forecast(
                        series.names[number],
                        tuple(written(ahead, series.step.dated, series.step.zoned)),
                        self.config.quantiles,
                        tuple(tuple(row) for row in quantiles.tolist()),
                    )
                )
        return results

    def quantiles(self, data: ForecastDataset, origins: np.ndarray) -> np.ndarray:
        """(B, H, Q) forecasts from each of the ``origins`` (B,), in units of the data."""
        return data.in_units(self._z(data, origins)[:, -1], origins)

    def judged(
        self, data: ForecastDataset, firsts: np.ndarray | None = None, batch: int = 16
    ) -> list[Judged]:
        """Every known value after the first one of its series, or from ``firsts`` (N,) on, beside
        its interval a step before.

        Windows of the training's length overlap by half: so much lies before each value.
        """
        series, length = data.series, self.length
        stride = max(1, length // 2)
        firsts = series.bounds[:-1] + 1 if firsts is None else firsts
        rows: list[tuple[int, int]] = []
        for first, start, end in zip(firsts, series.bounds, series.ends, strict=False):
            # the last origin of each window, and from which on it is the one that speaks
            speaks = max(int(start), int(first) - 1)
            last = min(speaks + length - 1, int(end) - 2)
            while speaks <= end - 2:
                rows.append((last, speaks))
                speaks, last = last + 1, min(last + stride, int(end) - 2)
        results: list[Judged] = []
        outside: dict[tuple[int, int], int] = {}
        for number in range(0, len(rows), batch):
            chunk = rows[number : number + batch]
            origins = np.array([last for last, _ in chunk])
            z = self._z(data, origins)
            for (last, speaks), own in zip(chunk, z, strict=True):
                at = np.arange(speaks, last + 1)
                made = data.in_units(own[at - last + length - 1], at)[:, 0]
                values = series.values[at + 1]
                times = written(series.times[at + 1], series.step.dated, series.step.zoned)
                owner = int(data.owner(at[:1])[0])
                # 1 above its interval, -1 below
                sides = (values > made[:, -1]).astype(int) - (values < made[:, 0])
                places = [(owner, place) for place in (at + 1).tolist()]
                outside |= dict(zip(places, sides.tolist(), strict=True))
                results += [
                    Judged(
                        series.names[owner], time, value, quantiles[0], quantiles[-1],
                        outside[place] * outside.get((owner, place[1] - data.season), 0) < 0,
                    )
                    for place, time, value, quantiles in zip(
                        places, times, values.tolist(), made.tolist(), strict=True
                    )
                    if value == value
                ]  # fmt: skip
        return results

    def held_out_rate(self, batch: int = 16) -> tuple[float, int] | None:
        """The part of the run's own held-out values that leave their interval, and how many there
        are; None where the data of the run is not known, or no longer what it was trained on."""
        try:
            own = load_dataset(self.data, self.config.task, stored=self.data)
        except (ConfigError, DataError):
            return None
        assert isinstance(own, ForecastDataset)
        if self.fingerprint not in (None, own.fingerprint):
            return None
        judged = self.judged(own, np.maximum(own.train_ends, own.scales.ends), batch)
        return (
            (sum(one.unexpected for one in judged) / len(judged), len(judged)) if judged else None
        )

    @property
    def stated_rate(self) -> float:
        """The part of values that should leave their interval."""
        return 1 - self.config.quantiles[-1] + self.config.quantiles[0]

    def _z(self, data: ForecastDataset, origins: np.ndarray) -> np.ndarray:
        """(B, L, H, Q) quantiles in units of the series, of the steps up to each of ``origins``; a
        memory holds what came before them."""
        device, batch = next(self.model.parameters()).device, data.before(origins)
        segments = segments_ahead(self.model, data)
        ahead = [] if segments is None else data.ahead_of(origins, segments)
        with forked_random(device), torch.no_grad():
            torch.manual_seed(0)
            with evaluating(self.model):
                state = None if segments is None else self.model.init_state(len(origins))
                for part in (one.to(device) for one in (*ahead, batch)):
                    out = self.model(part.inputs, mask=part.mask, state=state)
                    state = out.state if segments is not None else None
                z = out.logits.cpu().double().numpy()
        real = np.ones(z.shape[:2], bool) if batch.keep is None else batch.keep.numpy()
        if not np.isfinite(z[real]).all():
            raise DivergedError(
                "the model gives numbers that are not finite: train it again with a lower 'lr'"
            )
        return z

    def _require_known(self, series: DatedSeries) -> None:
        known = series.known.shape[1]
        for name, end, bound in zip(series.names, series.ends, series.bounds[1:], strict=True):
            ahead = series.known[end : min(end + self.config.horizon, bound)]
            if known and (len(ahead) < self.config.horizon or np.isnan(ahead).any()):
                raise DataError(
                    f"{few(series.covariates[:known])} must be known ahead: after the last value "
                    f"of '{name}' give {self.config.horizon} rows more, with that and no value"
                )


def forecast(
    run: str | Path | Model,
    source: str | Path | None = None,
    *,
    batch: int = 16,
    device: str = "auto",
) -> list[Forecast]:
    """Forecasts of a trained model: the next values of every series, with their times.

        ef.forecast("runs/attention", "sales.csv")[0].values

    Args:
        run: a run's directory, a saved model's folder, or a model.
        source: a table with the columns of the training data; rows after a series' last value tell
            what is known ahead (default: the run's own data).
        batch: series a forward pass.
        device: where a run or a saved model is computed; auto: an accelerator if there is one. A
            model stays where it is.

    Raises:
        UnsupportedError: a model of another task.
        DataError: other columns or another frequency than it was trained with.
    """
    reader = SeriesReader(run) if isinstance(run, Model) else SeriesReader.load(run, device=device)
    return reader.forecasts(reader.read(None if source is None else str(source)), batch)
