"""The example of a task: forecasts of dated series, beside those of statsforecast."""

import importlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everyformer import family
from everyformer.cli import main
from everyformer.core.errors import DataError
from everyformer.data import DataConfig, load_dataset
from everyformer.models.build import create_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "forecasting"
MODULE = "everyformer_forecasting"
OPTIONS = ("--data.options", "horizon=4", "season=6", "--length", "12")
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--batch", "4", "--steps", "2")

pytestmark = pytest.mark.full("it needs statsforecast, which nothing else does")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, installed as its pyproject.toml says, and ``days.csv`` beside it."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("statsforecast", reason="the example is measured beside statsforecast")
    site = tmp_path / "site"
    about = site / f"{MODULE}-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: everyformer-forecasting\nVersion: 0.1"
    )
    project = (EXAMPLE / "pyproject.toml").read_text()
    entries = project.split("\n[project.entry-points.")[1:]
    points = [
        line.replace('"', "").replace("]", "", 1)
        for part in entries
        for line in part.splitlines()
        if "=" in line or "]" in line
    ][:4]
    assert points == [
        "everyformer.data",
        f"dated-series = {MODULE}:DatedSeries",
        "everyformer.tasks",
        f"forecast-series = {MODULE}:ForecastSeries",
    ]
    (about / "entry_points.txt").write_text("[{}]\n{}\n[{}]\n{}\n".format(*points))
    shutil.copy(EXAMPLE / f"{MODULE}.py", site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    table(3, 60).to_csv("days.csv", index=False)
    assert pandas.__version__
    family._known.cache_clear()
    yield importlib.import_module(MODULE)
    family._known.cache_clear()


def table(count: int, length: int, seed: int = 0) -> Any:
    """Series of a season of 6 and shared shocks, of which the last one begins 10 days later."""
    import pandas as pd

    drawn = np.random.default_rng(seed)
    days = pd.date_range("2024-01-01", periods=length, freq="D")
    shared = drawn.normal(size=length).cumsum() / 2
    parts = []
    for n in range(count):
        y = (
            20
            + 3 * n
            + 4 * np.sin(np.arange(length) * np.pi / 3)
            + shared
            + drawn.normal(size=length)
        )
        part = pd.DataFrame({"unique_id": f"s{n}", "ds": days, "y": y})
        parts.append(part.iloc[10:] if n == count - 1 else part)
    return pd.concat(parts)


def load(path: str = "days.csv", **options: Any) -> Any:
    config = DataConfig(source=path, length=12, validation=0.3, options=("horizon=4", "season=6"))
    return load_dataset(replace(config, **options))


def test_targets_are_beside_the_last_season_and_end_with_the_training_part(example: Any) -> None:
    data = load()
    assert (data.cut, data.first.tolist()) == (42, [6, 6, 16])
    assert data.origins[:4].tolist() == [[0, 42], [1, 42], [2, 42], [0, 46]]
    assert data.origins[-1].tolist() == [2, 54]
    batch = data.train_batch(3, 64, 0)
    assert batch.inputs.shape == (64, 12, 2)
    assert batch.targets.shape == (64, 12, 4)
    spoilt = replace(data, values=np.where(np.arange(60) < 42, data.values, np.nan))
    again = spoilt.train_batch(3, 64, 0)
    assert torch.equal(again.inputs, batch.inputs)
    assert torch.equal(again.targets, batch.targets)
    assert torch.isfinite(batch.inputs).all()
    # by hand: of series 1 the forecast behind day 41, read up to there
    one = data.windows(np.array([1]), np.array([42]), 1)
    y, unit = data.values[1], np.abs(data.values[1, 6:42] - data.values[1, :36]).mean()
    expected = [(y[42 + k] - y[36 + k]) / unit for k in range(4)]
    np.testing.assert_allclose(one.targets[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(one.inputs[0, -1, 0], (y[41] - y[35]) / unit, rtol=1e-5)
    np.testing.assert_allclose(data.naive(np.array([0]), np.array([20])), data.values[0, 14:18])


def test_zeros_are_the_seasonal_naive_forecast_of_statsforecast(example: Any) -> None:
    data = load()
    errors = example.ForecastErrors(data)
    errors.taken += 1
    found = errors.of_loss(0.0, None)
    assert found["mase"] == pytest.approx(found["seasonal_mase"], rel=1e-12)
    assert found["origins"] == 4
    # the baselines' numbers by hand, of the values alone
    y, at = data.values, data.origins
    past = np.array([[y[n, t - 6 + k % 6] for k in range(4)] for n, t in at])
    true = np.array([y[n, t : t + 4] for n, t in at])
    scaled = (np.abs(true - past) / data.unit[at[:, 0], None]).reshape(4, 3, 4)
    assert found["seasonal_mase"] == pytest.approx(scaled.mean((0, 2)).mean(), rel=1e-9)
    # of equal quantiles, the pinball loss at every level is half of the absolute error in the mean
    assert found["wql"] == pytest.approx(np.abs(true - past).sum() / np.abs(true).sum(), rel=1e-9)


def test_quantiles_of_a_window_are_scored_as_those_of_that_window(example: Any) -> None:
    data = load()
    perfect, rest = example.ForecastErrors(data), example.ForecastErrors(data)
    for batch in data.validation_batches(5):
        exact = batch.targets[:, -1:, :, None].expand(-1, -1, -1, 9)
        out = example.ModelOutput(exact, torch.zeros(()), {"task": torch.zeros(())}, None)
        perfect.add(out, batch)
        out = out._replace(logits=exact + 1)
        rest.add(out, batch)
    assert perfect.of_loss(0.0, None)["wql"] == pytest.approx(0, abs=1e-6)
    over = rest.of_loss(0.0, None)
    # all quantiles one unit too high: 2 (1 - q) u in the mean over levels is u
    share = (
        data.unit[data.origins[:, 0]].sum()
        * 4
        / np.abs([data.values[n, t : t + 4] for n, t in data.origins]).sum()
    )
    assert over["wql"] == pytest.approx(share, rel=1e-6)
    assert over["mase"] == pytest.approx(1, rel=1e-6)


def test_intervals_hold_the_truth_where_series_share_their_shocks(example: Any) -> None:
    import pandas as pd

    drawn = np.random.default_rng(0)
    origins, series, steps, truth = 12, 20, 4, np.sqrt(2 / np.pi) / 100
    index = pd.MultiIndex.from_product(
        [range(origins), range(series), range(steps)], names=["cutoff", "unique_id", "ds"]
    )
    held = crowd = 0
    for _ in range(150):
        error = np.sqrt(0.8) * drawn.normal(size=(origins, 1, 1)) + np.sqrt(0.2) * drawn.normal(
            size=(origins, series, steps)
        )
        frame = pd.DataFrame({"y": 100.0, "f": 100 + error.ravel()}, index).reset_index()
        for by_row in (False, True):
            given = (
                frame.assign(cutoff=frame.cutoff * series + frame.unique_id) if by_row else frame
            )
            _, (low, high) = example.weighted_quantile_loss(given, {0.5: "f"})
            held, crowd = (
                held + (not by_row and low <= truth <= high),
                crowd + (by_row and low <= truth <= high),
            )
    assert 0.90 < held / 150 < 0.99
    assert crowd / 150 < 0.6


def test_the_loss_is_twice_the_mean_pinball_loss_of_the_last_positions(example: Any) -> None:
    torch.manual_seed(0)
    model = create_model(
        "linear",
        "forecast-series",
        width=8,
        heads=2,
        layers=1,
        max_length=12,
        task_options={"horizon": 4},
    )
    x, goal = torch.randn(2, 12, 2), torch.randn(2, 3, 4)
    with torch.no_grad():
        out = model(x, targets=goal)
    assert out.logits.shape == (2, 12, 4, 9)
    by_hand = [
        2 * max(q * (v - f), (q - 1) * (v - f))
        for b in range(2)
        for t in range(3)
        for k in range(4)
        for q, f, v in (
            (q, float(out.logits[b, t - 3, k, i]), float(goal[b, t, k]))
            for i, q in enumerate(example.LEVELS)
        )
    ]
    assert float(out.loss) == pytest.approx(np.mean(by_hand), rel=1e-5)
    # at the start the quantiles of normal errors whose mean size is 1
    assert float(out.logits[0, 0, 0, 8]) == pytest.approx(1.6061867, rel=1e-6)


def test_the_verbs_train_measure_compare_and_forecast(
    example: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--data", "days.csv", *OPTIONS, "--data.validation", "0.3", *SIZES)
    assert main(["train", "aft-conv", *given, "--out", "run"]) == 0
    assert "seasonal naive" in capsys.readouterr().out
    assert main(["eval", "run"]) == 0
    assert "95% interval of wql over 4 origins" in capsys.readouterr().out
    assert main(["compare", "linear", "aft-conv", *given, "--seeds", "1", "--out", "both"]) == 0
    assert "weighted quantile loss" in capsys.readouterr().out
    found = example.forecast("run", "days.csv")
    assert found.index.get_level_values("ds").min() == example.pd.Timestamp("2024-03-01")
    assert found.shape == (12, 9)
    # a model at its start but for two steps stays near the last season
    assert np.abs(found["q0.5"].to_numpy().reshape(3, 4) - load().values[:, 54:58]).max() < 5
    assert (
        main(["eval", "run", "--data", "days.csv", "--data.options", "horizon=5", "season=6"]) == 2
    )
    assert "forecasts 4 steps, not 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.drop(t.index[5:6]), "at some time after its first"),
        (lambda t: t[~t.ds.isin(t.ds.unique()[20:21])], "not at even distances"),
        (lambda t: example_twice(t), "2024-01-01 00:00:00 of s0 twice"),
        (lambda t: t.assign(y="many"), "a value that is no number"),
        (lambda t: t[t.ds < "2024-01-20"], "take a smaller --length"),
    ],
)
def test_what_is_no_such_table_is_refused(change: Any, told: str, example: Any) -> None:
    change(table(3, 60).reset_index(drop=True)).to_csv("other.csv", index=False)
    with pytest.raises(DataError, match=told):
        load("other.csv")


def example_twice(frame: Any) -> Any:
    import pandas as pd

    return pd.concat([frame.iloc[:1], frame])
