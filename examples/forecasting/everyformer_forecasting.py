"""Forecasts of series with dates: a kind of data and a task of another package.

A table has a row for each series and time, in the columns ``unique_id``, ``ds`` and ``y`` that
statsforecast and utilsforecast read. With y_t the values of a series, m the season, u the mean of
|y_t - y_(t-m)| over its training part and s_(t,k) the value of the last known season at time t+k,

    x_t = ((y_t - y_(t-m)) / u, (y_t - mean) / u)          what a member reads
    q_(t,k) = s_(t,k) + u * (W h_t + b)_(k,level)          what it says of time t+k, k <= horizon

so that zeros are the seasonal naive forecast. The loss is twice the mean pinball loss in units of
u. The last part of the time is held out for all series; forecasts begin there every ``horizon``
steps. Errors of one such origin have the same weather, prices and holidays in them, whatever the
series or the step: for intervals they are one observation.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch
from statsforecast import StatsForecast
from statsforecast.models import Naive, RandomWalkWithDrift, SeasonalNaive
from torch import Tensor, nn
from utilsforecast.losses import mase, quantile_loss

from everyformer.core.bounds import Count
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, DataError
from everyformer.core.measures import METRICS, MetricInfo
from everyformer.core.outputs import ModelOutput
from everyformer.core.tasks import Task
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.dataset import Dataset
from everyformer.data.kind import Kind, Request
from everyformer.data.selection import spread
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model
from everyformer.models.language import added
from everyformer.tasks.scores import Scores, ratio

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COLUMNS = ["unique_id", "ds", "y"]
METRICS["wql"] = MetricInfo(
    "weighted quantile loss",
    "lower",
    ".4g",
    "a weighted quantile loss of {} (lower is better)",
    "seasonal_wql",
    "the seasonal naive forecast",
)


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(Options):
    """What is forecast, as ``--data.options horizon=24 season=24``."""

    horizon: Count = 1
    """steps that are forecast at once"""
    season: Count = 1
    """steps after which values come again; 1: none"""


class DatedSeries(Kind):
    """CSV files with the columns unique_id, ds and y."""

    name = "dated-series"
    reads = ("length",)
    task = "forecast-series"
    Options = ForecastOptions

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True of one CSV file whose header names the three columns."""
        path = request.config.source
        if not path.endswith((".csv", ".csv.gz")):
            return False
        try:
            return {*COLUMNS} <= {*pd.read_csv(path, nrows=0).columns}
        except (OSError, ValueError):
            return False

    def load(self) -> Dataset:
        """The series; some may begin later than others, and all end together.

        Raises:
            DataError: see `read_series`; or too few values for the season, length and horizon.
        """
        config, options = self.config, self.options
        table = read_series(config.source)
        values = table.to_numpy(np.float64).T
        cut = len(table) - max(options.horizon, round(config.validation * len(table)))
        first = np.isfinite(values).argmax(1) + options.season
        # a window of training, and the seasons before what is read of it
        enough = first + config.length + options.horizon <= cut
        if not enough.any():
            raise DataError(
                f"'{config.source}' has {cut:,} times before those held out, but a season of "
                f"{options.season}, a length of {config.length} and a horizon of {options.horizon} "
                "need as many as the three together: take a smaller --length, or fewer held out"
            )
        left = "" if enough.all() else f"; {(~enough).sum()} series are too short and left out"
        names, values = table.columns[enough], values[enough]
        past = values[:, :cut]
        changes = np.abs(past[:, options.season :] - past[:, : -options.season])
        unit = np.nanmean(changes, 1)
        return SeriesDataset(
            name=config.source,
            task=self.task,
            kind="series",
            vocabulary=1,
            length=config.length,
            split=f"{len(names)} series of {len(table):,} times, those from {table.index[cut]} on "
            f"held out{left}",
            fingerprint=digest(values.tobytes(), repr(options).encode()),
            names=tuple(map(str, names)),
            times=table.index,
            values=values,
            first=first[enough],
            cut=cut,
            mean=np.nanmean(past, 1),
            unit=np.where(unit > 0, unit, 1.0),
            options=options,
        )


def read_series(path: str) -> pd.DataFrame:
    """Values by time (rows) and series (columns), NaN before a series begins.

    Raises:
        DataError: times come twice, or are not at even distances; values are missing or no numbers
            or series end before others.
    """
    frame = pd.read_csv(path, usecols=COLUMNS, parse_dates=["ds"])
    twice = frame.duplicated(["unique_id", "ds"])
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(f"'{path}' has {row.ds} of {row.unique_id} twice: give each time once")
    try:
        frame["y"] = frame["y"].astype(float)
    except ValueError as error:
        raise DataError(f"'{path}' has a value that is no number: {error}") from error
    table = frame.pivot(index="ds", columns="unique_id", values="y").sort_index()
    if len(table) < 3 or pd.infer_freq(table.index) is None:
        raise DataError(
            f"the times of '{path}' are not at even distances (hours, days, months ...): fill them "
            "with utilsforecast.preprocessing.fill_gaps and say what stands in the gaps"
        )
    begun = table.notna().cummax()
    gaps = (begun & table.isna()).any()
    if gaps.any():
        raise DataError(
            f"'{path}' has no value of {gaps.idxmax()} at some time after its first: fill gaps, "
            "and let all series end together"
        )
    return table


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesDataset(Dataset):
    """Windows (B, L, 2) of series; targets (B, T, horizon) of the last T positions."""

    names: tuple[str, ...]
    times: pd.DatetimeIndex
    values: np.ndarray
    """(series, times) float64, NaN before a series begins"""
    first: np.ndarray
    """(series,) the first time that has one a season before"""
    cut: int
    """times of the training part"""
    mean: np.ndarray
    unit: np.ndarray
    """(series,) over the training part"""
    options: ForecastOptions

    @property
    def shape_options(self) -> dict[str, Any]:
        return {"task_options": {"horizon": self.options.horizon}}

    def require_like(self, config: ModelConfig, facts: Any, what: str) -> None:
        horizon = config.task_options["horizon"]
        if horizon != self.options.horizon:
            raise DataError(
                f"{what} forecasts {horizon} steps, not {self.options.horizon}: give "
                f"--data.options horizon={horizon}"
            )

    @cached_property
    def origins(self) -> np.ndarray:
        """(n, 2) held-out windows: the series, and the first time that is forecast."""
        horizon = self.options.horizon
        starts = range(self.cut, len(self.times) - horizon + 1, horizon)
        return np.array([(n, at) for at in starts for n in range(len(self.names))])

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        drawn = np.random.default_rng((seed, step))
        series = drawn.integers(len(self.names), size=size)
        last = self.cut - self.options.horizon
        ends = drawn.integers(self.first[series] + self.length, last, endpoint=True)
        rows = slice(*portion.of(size))
        return self.windows(series[rows], ends[rows], self.length)

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        rows = spread(len(self.origins), limit)
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            batch = self.windows(*self.origins[some].T, 1)
            yield replace(batch, labels=torch.from_numpy(some))

    def windows(self, series: np.ndarray, ends: np.ndarray, scored: int) -> Batch:
        """Windows up to before the times ``ends``, with targets of their last positions."""
        horizon = self.options.horizon
        last = ends[:, None] - np.arange(scored)[::-1]
        ahead = last[..., None] + np.arange(horizon)
        naive = self.naive(series[:, None, None], last[..., None])
        targets = (self.values[series[:, None, None], ahead] - naive) / self.unit[
            series, None, None
        ]
        return Batch(self.inputs(series, ends), torch.from_numpy(targets.astype(np.float32)))

    def inputs(self, series: np.ndarray, ends: np.ndarray) -> Tensor:
        """What a member reads of the ``length`` values before each end."""
        at = ends[:, None] - np.arange(self.length, 0, -1)
        unit, rows = self.unit[series, None], series[:, None]
        now, before = self.values[rows, at], self.values[rows, at - self.options.season]
        both = ((now - before) / unit, (now - self.mean[series, None]) / unit)
        return torch.from_numpy(np.stack(both, -1).astype(np.float32))

    def naive(self, series: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """(..., horizon) the last season before each end, over and over."""
        season = self.options.season
        back = season - np.arange(self.options.horizon) % season
        return self.values[series, ends - back]

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Forecasts of statsforecast's simple models from every origin, with what came."""
        frame = self.frame(self.values, 0)
        freq, count = pd.infer_freq(self.times), len(self.origins) // len(self.names)
        models = [SeasonalNaive(self.options.season), Naive(), RandomWalkWithDrift()]
        used = int(self.origins[-1, 1]) + self.options.horizon
        frame = frame[frame.ds < self.times[used]] if used < len(self.times) else frame
        made = StatsForecast(models, freq).cross_validation(
            h=self.options.horizon, df=frame, n_windows=count, step_size=self.options.horizon,
            level=[20, 40, 60, 80],
        )  # fmt: skip
        return made.sort_values(["cutoff", "unique_id", "ds"]).reset_index(drop=True)

    def frame(self, values: np.ndarray, first: int) -> pd.DataFrame:
        """Values (series, times) from a time on as rows of `COLUMNS`."""
        times = self.times[first : first + values.shape[1]]
        wide = pd.DataFrame(values.T, index=times, columns=pd.Index(self.names, name="unique_id"))
        return (
            wide.rename_axis("ds")
            .melt(ignore_index=False, value_name="y")
            .dropna()
            .reset_index()[COLUMNS]
        )


class ForecastSeries(Task):
    """Series -> quantiles of the next ``horizon`` values, at every position."""

    name, about = "forecast-series", "dated series -> quantiles of what comes next"
    reads, predicts, goal = "dated series", "next", "forecasts"
    train = "--data my.csv --data.options horizon=24 season=24"
    metrics, loss_unit = ("wql",), "units of the seasonal naive error"

    def build(self, config: ModelConfig) -> Model:
        return Forecaster(config)

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        assert isinstance(dataset, SeriesDataset)
        return ForecastErrors(dataset)

    def table(self, evaluation: Any, dataset: Dataset) -> str:
        rows = ("", "seasonal_", "naive_", "drift_")
        names = ("this model", "seasonal naive", "naive", "random walk with drift")
        lines = [f"{'':24}{'wql':>8}{'mase':>8}"]
        for name, of in zip(names, rows, strict=True):
            wql, scaled = evaluation[f"{of}wql"], evaluation[f"{of}mase"]
            lines.append(f"{name:24}{wql:>8.4f}{scaled:>8.3f}")
        around, count = evaluation["wql_interval"], evaluation["origins"]
        if around is not None:
            low, high = around
            lines[1] += f"   95% interval of wql over {count} origins: {low:.4f} to {high:.4f}"
        return "\n".join(lines)


class Forecaster(Model):
    """x W + position, the stack, and quantiles of each later step in units of u."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        horizon = config.task_options["horizon"]
        self.steps = nn.Linear(2, config.width)
        self.head = nn.Linear(self.stack.out_width, horizon * len(LEVELS))
        self.start_weights([])
        # normal errors whose mean size is u
        normal = torch.tensor([NormalDist().inv_cdf(level) for level in LEVELS])
        nn.init.zeros_(self.head.weight)
        self.head.bias.data = (normal * (torch.pi / 2) ** 0.5).repeat(horizon)

    def forward(
        self, inputs: Tensor, *, targets: Tensor | None = None, mask: Any = None, state: Any = None,
        taps: Any = (), labels: Tensor | None = None,
    ) -> ModelOutput:  # fmt: skip
        """Quantiles (B, L, horizon, levels); ``targets`` (B, T, horizon) are of the last T
        positions, ``labels`` the numbers of held-out windows, which only errors read."""
        x = self.add_positions(self.steps(inputs), mask, state)
        out = self.stack(x, mask=mask, state=state, taps=taps)
        y, loss, losses = self.head(out.y).unflatten(-1, (-1, len(LEVELS))), None, out.losses
        if targets is not None:
            loss, losses = added(2 * pinball(y[:, -targets.shape[1] :], targets).mean(), losses)
        return ModelOutput(y, loss, losses, out.state, taps=out.taps)


def pinball(quantiles: Tensor, values: Tensor) -> Tensor:
    """max(q e, (q - 1) e) of the error e = value - quantile, for each level q."""
    error = values[..., None] - quantiles
    levels = torch.tensor(LEVELS, device=error.device, dtype=error.dtype)
    return torch.maximum(levels * error, (levels - 1) * error)


class ForecastErrors(Scores):
    """Quantiles of every held-out window, then their errors beside those of simple forecasts."""

    unit = "bits"

    def __init__(self, dataset: SeriesDataset) -> None:
        super().__init__(dataset)
        self.series = dataset
        count = len(dataset.origins)
        self.found = torch.zeros(count, dataset.options.horizon, len(LEVELS), dtype=torch.float64)
        self.taken = torch.zeros(count, dtype=torch.float64)

    def add(self, out: ModelOutput, batch: Batch) -> None:
        super().add(out, batch)
        assert batch.labels is not None
        rows = batch.labels.cpu()
        self.found[rows] = out.logits[:, -1].detach().double().cpu()
        self.taken[rows] = 1.0

    def share(self, total: Any) -> None:
        super().share(total)
        self.found, self.taken = total(self.found), total(self.taken)

    def of_loss(self, loss: float, interval: list[float] | None) -> dict[str, Any]:
        """The weighted quantile loss, its interval over origins, and the mean scaled error."""
        data, rows = self.series, self.taken.bool().numpy()
        series, ends = data.origins.T
        quantiles = data.naive(series[:, None], ends[:, None])[..., None] + (
            data.unit[series, None, None] * self.found.numpy()
        )
        frame = data.baselines.copy()
        order = np.lexsort((np.array(data.names)[series], ends))
        frame[[f"own-{level}" for level in LEVELS]] = quantiles[order].reshape(-1, len(LEVELS))
        frame = frame[np.repeat(rows[order], data.options.horizon)]
        result: dict[str, Any] = {}
        columns = {"": {level: f"own-{level}" for level in LEVELS}}
        for name, model in (
            ("seasonal_", "SeasonalNaive"), ("naive_", "Naive"), ("drift_", "RWD")
        ):  # fmt: skip
            columns[name] = {level: _column(model, level) for level in LEVELS}
        past = data.frame(data.values[:, : data.cut], 0)
        for name, of in columns.items():
            result[f"{name}wql"], around = weighted_quantile_loss(frame, of)
            if not name:
                result["wql_interval"] = around
            scaled = mase(frame, [of[0.5]], data.options.season, past)
            result[f"{name}mase"] = float(scaled[of[0.5]].mean())
        return result | {"origins": int(frame.cutoff.nunique())}

    def accuracy(self, *sums: float) -> dict[str, Any]:
        return {}


def _column(model: str, level: float) -> str:
    """The column of a quantile in what statsforecast gives."""
    if level == 0.5:
        return model
    return f"{model}-{'lo' if level < 0.5 else 'hi'}-{round(abs(200 * level - 100))}"


def weighted_quantile_loss(
    frame: pd.DataFrame, columns: dict[float, str]
) -> tuple[float, list[float] | None]:
    """2 sum of pinball losses / sum of |y|, a mean over levels, with its 95% interval.

    Args:
        frame: rows of ``unique_id``, ``ds``, ``cutoff`` and ``y``. columns: level -> its column.

    All rows of a cutoff are one observation: series move together, and so do a forecast's steps.
    The interval is Student's for a ratio of sums over cutoffs; None of a single one.
    """
    by = frame.groupby("cutoff").y
    sizes, counts = by.apply(lambda y: y.abs().sum()), by.size()
    losses = [
        quantile_loss(frame, {name: name}, level, id_col="cutoff", cutoff_col="none").set_index(
            "cutoff"
        )[name]
        for level, name in columns.items()
    ]
    sums = 2 * sum(losses) / len(losses) * counts
    n, s = sizes.to_numpy(), sums.to_numpy()
    return ratio(len(n), n.sum(), (n * n).sum(), s.sum(), (s * s).sum(), (s * n).sum())


def forecast(run: str, path: str) -> pd.DataFrame:
    """What a run says of the ``horizon`` times after the end of the series in ``path``.

    Raises:
        ConfigError: the run forecasts no series.
    """
    from everyformer.data import load_dataset
    from everyformer.training.saved import load_model, read_config, trained_on

    model, config = load_model(run), trained_on(read_config(Path(run)))
    if not isinstance(model, Forecaster) or config is None:
        raise ConfigError(f"the run in {run} forecasts no series: give one of forecast-series")
    data = load_dataset(replace(config, source=path), ForecastSeries.name)
    assert isinstance(data, SeriesDataset)
    series, horizon = np.arange(len(data.names)), data.options.horizon
    ends = np.full(len(series), len(data.times))
    with torch.no_grad():
        found = model(data.inputs(series, ends)).logits[:, -1].double().numpy()
    values = data.naive(series[:, None], ends[:, None])[..., None]
    values = values + data.unit[:, None, None] * found
    later = pd.date_range(data.times[-1], periods=horizon + 1, freq=pd.infer_freq(data.times))[1:]
    index = pd.MultiIndex.from_product([data.names, later], names=COLUMNS[:2])
    return pd.DataFrame(values.reshape(-1, len(LEVELS)), index, [f"q{q}" for q in LEVELS])


if __name__ == "__main__":
    # the package's own classes, not those of this file by another name
    import everyformer_forecasting

    found = everyformer_forecasting.forecast(*sys.argv[1:3])
    found.to_csv(sys.stdout, float_format="%.6g")
