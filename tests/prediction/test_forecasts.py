"""Forecasts of a run: the next values with their times, and values that were not expected."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.core.errors import DataError, UnsupportedError
from everyformer.data import DataConfig
from everyformer.models.base import Model
from everyformer.prediction.forecasts import SeriesReader
from helpers import build_model

CONTEXT, HORIZON = 8, 3


def table(place: Path, name: str = "days.csv", *, days: int = 40, ahead: int = 0) -> Path:
    """Two series of ``days`` days with a week, and whether an offer is on, known ahead."""
    rows = ["date,shop,sold,offer"]
    for shop, size in (("a", 10), ("b", 1000)):
        for day in range(days + ahead):
            date = np.datetime64("2024-01-01") + day
            sold = "" if day >= days else size * (1 + (day % 7 == 5)) + day
            rows.append(f"{date},{shop},{sold},{int(day % 10 == 0)}")
    path = place / name
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def options(path: Path, **more) -> DataConfig:
    return DataConfig(
        source=str(path), context=CONTEXT, horizon=HORIZON, value_column=("sold",),
        known_column=("offer",), **more,
    )  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path) -> SeriesReader:
    """A model whose forecast is the seasonal naive one, within one unit of it to either side."""
    data = options(table(tmp_path, ahead=HORIZON))
    loaded = ef_data(data)
    made = model(loaded)
    return SeriesReader(made, data=data, step="daily", length=CONTEXT)


def ef_data(config: DataConfig):
    from everyformer.data import load_dataset

    return load_dataset(config, "forecast")


def model(data) -> Model:
    made = build_model(
        "attention", "forecast", width=8, layers=1, heads=2, max_length=CONTEXT,
        quantiles=(0.1, 0.5, 0.9),
        **{k: v for k, v in data.model_options.items() if k not in ("vocabulary", "classes")},
    )  # fmt: skip
    with torch.no_grad():
        made.head.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]).repeat(HORIZON))
    return made


def test_the_next_values_come_after_the_last_ones_with_their_dates(reader):
    first, second = reader.forecasts(reader.read())
    assert (first.series, second.series) == ("a", "b")
    assert first.times == ("2024-02-10", "2024-02-11", "2024-02-12")
    # of days 40 to 42 of the series the values a week before
    assert first.values == pytest.approx((20 + 33, 10 + 34, 10 + 35))
    # a week on a series has grown by 7, which is the unit of both
    assert second.values == pytest.approx((2000 + 33, 1000 + 34, 1000 + 35))
    assert second.quantiles[0] == pytest.approx((2033 - 7, 2033, 2033 + 7))
    rows = [*first.rows()]
    assert rows[0] == {
        "series": "a", "time": "2024-02-10", "forecast": first.values[0],
        "q0.1": first.quantiles[0][0], "q0.5": first.values[0], "q0.9": first.quantiles[0][2],
    }  # fmt: skip


def test_what_is_known_ahead_must_be_given_for_every_step(reader, tmp_path):
    short = table(tmp_path, "short.csv", ahead=HORIZON - 1)
    with pytest.raises(DataError, match="offer must be known ahead: after the last value of 'a'"):
        reader.forecasts(reader.read(str(short)))
    assert len(reader.forecasts(reader.read(str(table(tmp_path, "long.csv", ahead=HORIZON))))) == 2


@pytest.mark.parametrize("name", ["attention", "linear", "transformer-xl", "aft-full"])
def test_every_value_is_judged_once_by_what_was_read_before_it(name, tmp_path):
    data = ef_data(options(table(tmp_path)))
    given = {k: v for k, v in data.model_options.items() if k not in ("vocabulary", "classes")}
    made = build_model(name, "forecast", width=8, layers=1, heads=2, max_length=CONTEXT, **given)
    torch.nn.init.normal_(made.head.weight, std=0.5)
    reader = SeriesReader(made, data=options(table(tmp_path)), length=CONTEXT)
    read = reader.read()
    judged = reader.judged(read, batch=3)
    assert [one.series for one in judged] == ["a"] * 39 + ["b"] * 39
    assert len({(one.series, one.time) for one in judged}) == 78
    # the first window begins with the series, and later ones have half a context before each value
    origin = np.array([read.series.bounds[1] + CONTEXT - 1])
    low, high = reader.quantiles(read, origin)[0, 0, [0, -1]]
    ninth = judged[39 + CONTEXT - 1]
    assert (ninth.low, ninth.high) == pytest.approx((low, high))
    assert ninth.time == "2024-01-09"
    assert ninth.value == read.series.values[read.series.bounds[1] + CONTEXT]


def test_a_memory_holds_what_came_before_the_window(tmp_path):
    data = ef_data(options(table(tmp_path, ahead=HORIZON)))
    given = {k: v for k, v in data.model_options.items() if k not in ("vocabulary", "classes")}
    made = build_model(
        "transformer-xl", "forecast", width=8, layers=1, heads=2, slots=2 * CONTEXT, **given
    )
    torch.nn.init.normal_(made.head.weight, std=0.5)
    reader = SeriesReader(made, data=options(tmp_path / "days.csv"), length=CONTEXT)
    read = reader.read()
    origin = read.series.ends[:1] - 1
    state = made.init_state(1, dtype=torch.float64)
    for back in (2, 1, 0):
        state = (out := made(read.before(origin, back * CONTEXT).inputs, state=state)).state
    np.testing.assert_allclose(
        reader.quantiles(read, origin), read.in_units(out.logits[:, -1].detach().numpy(), origin)
    )


def test_an_outlier_is_unexpected_and_the_rate_is_that_of_held_out_values(reader, tmp_path):
    text = table(tmp_path, "other.csv").read_text(encoding="utf-8")
    (tmp_path / "other.csv").write_text(text.replace("-20,a,39,", "-20,a,290,"), encoding="utf-8")
    judged = reader.judged(reader.read(str(tmp_path / "other.csv")))
    [outlier] = [one for one in judged if one.value == 290]
    assert outlier.unexpected
    assert outlier.row()["anomaly"] is True
    [echo] = [one for one in judged if one.echo]
    assert (echo.series, echo.time, echo.unexpected) == ("a", "2024-01-27", True)
    assert reader.stated_rate == pytest.approx(0.2)
    rate, count = reader.held_out_rate()
    data = ef_data(reader.data)
    assert count == int((data.series.ends - data.train_ends).sum())
    assert rate == 0  # the week repeats itself, but for a day's trend
    known = SeriesReader(reader.model, data=reader.data, fingerprint=data.fingerprint)
    assert known.held_out_rate() is not None
    changed = SeriesReader(reader.model, data=reader.data, fingerprint="that of other data")
    assert changed.held_out_rate() is None
    moved = dataclasses.replace(reader.data, source=str(tmp_path / "gone.csv"))
    assert SeriesReader(reader.model, data=moved).held_out_rate() is None


def test_times_with_a_zone_are_written_with_that_of_utc(tmp_path):
    rows = ["date,shop,sold,offer"]
    for hour in range(60):
        stamp = np.datetime64("2024-03-30T00:00") + np.timedelta64(hour, "h")
        rows.append(f"{stamp}:00+02:00,a,{10 + hour % 24},0")
    rows += [f"2024-04-01T{hour}:00:00+02:00,a,,0" for hour in (12, 13, 14)]
    path = tmp_path / "hours.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    data = options(path)
    reader = SeriesReader(model(ef_data(data)), data=data, length=CONTEXT)
    [forecast] = reader.forecasts(reader.read())
    assert forecast.times[0] == "2024-04-01T10:00:00Z"
    assert {one.time[-1] for one in reader.judged(reader.read())} == {"Z"}


def test_missing_values_are_not_judged(reader, tmp_path):
    text = table(tmp_path, "holes.csv").read_text(encoding="utf-8")
    (tmp_path / "holes.csv").write_text(text.replace("-20,a,39,", "-20,a,,"), encoding="utf-8")
    assert len(reader.judged(reader.read(str(tmp_path / "holes.csv")))) == 77


def test_series_of_another_frequency_or_with_other_columns_are_refused(reader, tmp_path):
    text = table(tmp_path, "weekly.csv").read_text(encoding="utf-8").splitlines()
    weekly = [text[0], *(line for n, line in enumerate(text[1:41]) if n % 7 == 0)]
    (tmp_path / "weekly.csv").write_text("\n".join(weekly), encoding="utf-8")
    with pytest.raises(DataError, match="have values weekly, but the model was trained on such th"):
        reader.read(str(tmp_path / "weekly.csv"))
    bare = SeriesReader(reader.model, data=dataclasses.replace(reader.data, known_column=()))
    with pytest.raises(DataError, match="with the covariates none, but the model reads"):
        bare.read(str(table(tmp_path)))


def test_a_saved_forecaster_forecasts_tables_by_their_headers(tmp_path):
    path = tmp_path / "plain.csv"
    rows = [f"2024-01-{day:02d},{10 + day % 7}" for day in range(1, 29)]
    path.write_text("\n".join(("date,sold", *rows)), encoding="utf-8")
    data = ef_data(DataConfig(source=str(path), context=CONTEXT, horizon=HORIZON))
    ef.save(model(data), tmp_path / "saved")
    [one] = ef.forecast(tmp_path / "saved", path)
    assert one.times == ("2024-01-29", "2024-01-30", "2024-01-31")
    assert one.values == pytest.approx((11, 12, 13), abs=1e-5)
    assert ef.forecast(model(data).double(), str(path)) == [one] or not math.isnan(one.values[0])


def test_other_models_forecast_nothing_and_say_what_they_do():
    with pytest.raises(UnsupportedError, match="`predict` answers rows"):
        SeriesReader(build_model("attention", width=8, layers=1, heads=2))
