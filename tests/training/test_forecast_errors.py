"""Errors of forecasts, and forecasts without a model: those of statsforecast on the same split."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from pandas import DataFrame
from statsforecast import StatsForecast
from statsforecast.models import Naive, RandomWalkWithDrift, SeasonalNaive
from utilsforecast.losses import mae, mase, rmse, scaled_crps

from everyformer.data import DataConfig
from everyformer.data.dated.series import DatedSeries
from everyformer.data.dated.simple import NAMES, SimpleForecasts, filled
from everyformer.data.dated.times import DAY, Step
from everyformer.data.dated.windows import ForecastDataset, forecast_dataset
from everyformer.training.evaluate import evaluate
from everyformer.training.forecasts import ForecastErrors
from everyformer.training.worth import worth
from helpers import build_model

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
WIDTHS = {0.05: "-lo-90", 0.1: "-lo-80", 0.5: "", 0.9: "-hi-80", 0.95: "-hi-90"}
MODELS = {"naive": "Naive", "seasonal": "SeasonalNaive", "drift": "RWD"}
HORIZON = 9


def seasonal(length: int = 80) -> np.ndarray:
    """A trend, a week and noise."""
    random, t = np.random.default_rng(1), np.arange(length)
    return 50 + 0.4 * t + 9 * np.sin(2 * np.pi * t / 7) + random.normal(0, 2, length)


def intermittent(length: int = 80) -> np.ndarray:
    """Mostly nothing, as spare parts are sold."""
    random = np.random.default_rng(2)
    return random.poisson(3, length) * (random.random(length) < 0.25).astype(float)


SERIES = {"seasonal with trend": seasonal(), "intermittent": intermittent()}


def dataset(*every: np.ndarray, **options) -> ForecastDataset:
    bounds = np.cumsum([0, *map(len, every)])
    series = DatedSeries(
        names=tuple(f"s{n}" for n in range(len(every))),
        bounds=bounds,
        ends=bounds[1:].copy(),
        times=np.concatenate([DAY * np.arange(len(one), dtype=float) for one in every]),
        values=np.concatenate(every),
        known=np.empty((bounds[-1], 0)),
        past=np.empty((bounds[-1], 0)),
        covariates=(),
        step=Step("second", float(DAY)),
    )
    sizes = {"horizon": HORIZON, "context": 16, **options}
    return forecast_dataset(series, DataConfig(source="made", **sizes), "made")


def theirs(values: np.ndarray) -> DataFrame:
    """Their forecasts of the last steps, beside the truth."""
    frame = DataFrame({"unique_id": "s0", "ds": range(len(values)), "y": values})
    models = [Naive(), SeasonalNaive(7), RandomWalkWithDrift()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = StatsForecast(models, freq=1).forecast(
            df=frame[:-HORIZON], h=HORIZON, level=[80, 90]
        )
    return made.merge(frame, on=["unique_id", "ds"])


@pytest.mark.parametrize("name", SERIES)
def test_forecasts_without_a_model_are_those_of_statsforecast(name):
    values = SERIES[name]
    made = SimpleForecasts(values, 7).at(np.array([len(values) - HORIZON - 1]), HORIZON)
    expected = theirs(values)
    for kind in NAMES:
        columns = [f"{MODELS[kind]}{WIDTHS[level]}" for level in LEVELS]
        np.testing.assert_allclose(made[kind].quantiles(LEVELS)[0], expected[columns], rtol=1e-9)


GAPS = {
    "a part left out": range(20, 50),
    "weekly among days": sorted(set(range(80)) - set(range(0, 80, 7))),
    "holes": (1, 5, 6, 13, 40, 41, 59),
}


@pytest.mark.parametrize("gaps", GAPS)
def test_gaps_are_no_changes_of_zero(gaps):
    """Errors are those of known values alone: over g steps, a g-th of their square."""
    values, origin = seasonal(), 60
    values[list(GAPS[gaps])] = np.nan
    series = SimpleForecasts(values, 7)
    made = series.at(np.array([origin]), HORIZON)
    known = [t for t in range(origin + 1) if not np.isnan(values[t])]
    last, slope = values[known[-1]], (values[known[-1]] - values[0]) / origin
    steps = [(b - a, values[b] - values[a]) for a, b in itertools.pairwise(known)]
    once = {
        "naive": [change**2 / g for g, change in steps],
        "drift": [(change - g * slope) ** 2 / g for g, change in steps],
    }
    far = {"naive": 1.0, "drift": 1 + 1 / origin}
    for kind, errors in once.items():
        assert made[kind].sigma[0, 0] == pytest.approx(np.sqrt(np.mean(errors) * far[kind]))
    assert made["naive"].mean[0].tolist() == [last] * HORIZON
    pairs = [values[t] - values[t - 7] for t in known if t >= 7 and not np.isnan(values[t - 7])]
    assert made["seasonal"].sigma[0, 0] == pytest.approx(np.sqrt(np.mean(np.square(pairs))))
    assert series.scale(np.array([origin]))[0] == pytest.approx(np.mean(np.abs(pairs)))
    data = dataset(values, validation=(80 - origin - 1) / 80, season=7)
    assert data.train_ends[0] == origin + 1
    assert data.scales.unit[0] == pytest.approx(np.mean(np.abs(pairs)))


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", SERIES)
def test_measures_are_those_of_their_library_on_the_same_split(name, kind):
    values = SERIES[name]
    data = dataset(values, validation=HORIZON / len(values))
    [batch] = data.validation_batches(10)
    assert batch.origins.tolist() == [len(values) - HORIZON - 1]
    errors = ForecastErrors(data, LEVELS)
    errors.add(torch.zeros(1, 16, HORIZON, len(LEVELS)), batch)
    ours, frame, model = errors.summary(), theirs(values), MODELS[kind]
    past = DataFrame(
        {"unique_id": "s0", "ds": range(len(values) - HORIZON), "y": values[:-HORIZON]}
    )
    columns = {model: [f"{model}{WIDTHS[level]}" for level in LEVELS]}
    expected = {
        "mae": mae(frame, [model]),
        "rmse": rmse(frame, [model]),
        "mase": mase(frame, [model], seasonality=7, train_df=past),
        "wql": scaled_crps(frame, columns, quantiles=np.array(LEVELS)),
    }
    for measure, table in expected.items():
        assert ours[f"{kind}_{measure}"] == pytest.approx(float(table[model][0]), rel=1e-9), measure


def test_a_model_whose_z_is_zero_is_the_seasonal_naive_forecast_at_every_level():
    data = dataset(*SERIES.values())
    errors = ForecastErrors(data, LEVELS)
    for batch in data.validation_batches(3):
        errors.add(torch.zeros(len(batch.inputs), 16, HORIZON, len(LEVELS)), batch)
    result = errors.summary()
    for measure in ("mae", "rmse", "mase"):
        assert result[measure] == pytest.approx(result[f"seasonal_{measure}"])
    assert result["wql"] > result["seasonal_wql"]
    assert result["sequences"] == len(data.origins)
    assert result["simple_wql"] == min(result[f"{kind}_wql"] for kind in NAMES)


def test_the_truth_itself_has_no_error_and_lies_within():
    data = dataset(*SERIES.values())
    errors = ForecastErrors(data, LEVELS)
    for batch in data.validation_batches(3):
        z = batch.targets[..., None].expand(-1, -1, -1, len(LEVELS)).nan_to_num()
        errors.add(z, batch)
    result = errors.summary()
    assert result["mae"] == pytest.approx(0, abs=1e-5)
    assert result["wql"] == pytest.approx(0, abs=1e-6)
    assert result["loss"] == pytest.approx(0, abs=1e-6)
    assert result["stated_coverage"] == pytest.approx(0.9)


def test_coverage_counts_what_lies_between_the_outermost_quantiles():
    data = dataset(seasonal())
    errors = ForecastErrors(data, LEVELS)
    [batch] = data.validation_batches(100)
    goals = batch.targets[:, -1]
    z = torch.stack([goals - 1, goals, goals, goals, goals + 1], -1)
    z[0, :3] += 5
    whole = torch.zeros(len(goals), 16, HORIZON, len(LEVELS))
    whole[:, -1] = z
    errors.add(whole, batch)
    assert errors.summary()["coverage"] == pytest.approx(1 - 3 / goals.numel())


def test_missing_values_are_counted_nowhere():
    values = seasonal()
    there = dataset(values, validation=HORIZON / len(values))
    values = values.copy()
    values[-3] = math.nan
    gone = dataset(values, validation=HORIZON / len(values))
    sums = []
    for data in (there, gone):
        errors = ForecastErrors(data, LEVELS)
        [batch] = data.validation_batches(10)
        errors.add(torch.zeros(1, 16, HORIZON, len(LEVELS)), batch)
        sums.append(errors.summary())
    origin = there.origins
    lost = abs(there.truth(origin) - there.reference(origin))[0, -3]
    assert sums[1]["scored"] == sums[0]["scored"] - 1
    assert sums[1]["mae"] * (HORIZON - 1) == pytest.approx(sums[0]["mae"] * HORIZON - lost)


def test_series_that_never_change_have_no_mase_and_it_is_counted():
    data = dataset(seasonal(), np.full(80, 3.0))
    errors = ForecastErrors(data, LEVELS)
    for batch in data.validation_batches(1):
        errors.add(torch.zeros(1, 16, HORIZON, len(LEVELS)), batch)
    result = errors.summary()
    assert result["without_mase"] == result["sequences"] / 2
    alone = dataset(np.full(80, 3.0))
    errors = ForecastErrors(alone, LEVELS)
    for batch in alone.validation_batches(1):
        errors.add(torch.zeros(1, 16, HORIZON, len(LEVELS)), batch)
    assert "mase" not in errors.summary()
    assert "simple_mase" not in errors.summary()


def test_sums_do_not_depend_on_how_rows_are_batched():
    data = dataset(*SERIES.values())
    model = build_model(
        "attention", "forecast", dtype=torch.float32, width=8, layers=1, heads=2, max_length=16,
        quantiles=LEVELS, **{k: v for k, v in data.model_options.items() if k != "vocabulary"},
    )  # fmt: skip
    torch.nn.init.normal_(model.head.weight, std=0.3)
    one, several = (evaluate(model, data, batch=size) for size in (1, 100))
    assert one.keys() == several.keys()
    for name, value in one.items():
        assert several[name] == pytest.approx(value, rel=1e-4), name


def test_the_model_s_loss_is_that_of_its_training():
    data = dataset(*SERIES.values())
    model = build_model(
        "linear", "forecast", dtype=torch.float32, width=8, layers=1, heads=2, max_length=16,
        **{k: v for k, v in data.model_options.items() if k != "vocabulary"},
    )  # fmt: skip
    [batch] = data.validation_batches(100)
    expected = model(batch.inputs, targets=batch.targets, mask=batch.mask).losses["task"]
    assert evaluate(model, data)["loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("high", "words"), [(0.09, "better than the best"), (0.2, "not surely better than the best")]
)
def test_a_forecast_is_worth_what_it_is_beside_the_best_without_a_model(high, words):
    evaluation = {"wql": 0.08, "wql_interval": [0.07, high], "simple_wql": 0.1}
    assert worth("forecast", evaluation).startswith(f"{words} of naive, seasonal naive and drift")


def test_gaps_are_filled_by_what_came_before():
    values = np.array([math.nan, 1.0, math.nan, math.nan, 4.0, math.nan])
    assert filled(values).tolist() == [1, 1, 1, 1, 4, 4]
