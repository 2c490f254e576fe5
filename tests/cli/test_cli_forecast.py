"""Forecasting as a user does it: a table, a run, what it is worth, the next values, anomalies."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from commands import Refused, Say, Train

SIZES = ("--width", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--context", "8")
QUANTILES = ["q0.01", "q0.05", "q0.1", "q0.25", "q0.5", "q0.75", "q0.9", "q0.95", "q0.99"]


@pytest.fixture
def sold(tree: Path) -> Path:
    """Two shops below each other, 60 days, offers known three days ahead."""
    rows = []
    for shop, size in (("north", 10), ("south", 30)):
        for day in range(63):
            date = np.datetime64("2024-01-01") + day
            value = "" if day >= 60 else size * (1 + (day % 7 == 5)) + day % 3
            rows.append(f"{date};{shop};{value};{int(day % 10 == 0)}")
    (tree / "sold.csv").write_text("\n".join(("date;shop;sold;offer", *rows)), encoding="utf-8")
    return tree


@pytest.fixture
def run(sold: Path, trained: Train) -> str:
    columns = ("--data.value-column", "sold", "--data.known-column", "offer")
    words = ("--data", "sold.csv", "--task", "forecast", "--horizon", "3", "--context", "8")
    return str(trained("linear", *words, *columns))


def test_a_run_is_measured_beside_forecasts_without_a_model(run: str, say: Say) -> None:
    code, out, err = say("eval", run)
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["forecast", "WQL", "MASE", "MAE", "RMSE"]
    assert [line[:2] for line in lines[2:6]] == [
        ["the", "model"], ["naive", lines[3][1]], ["seasonal", "naive"], ["drift", lines[5][1]],
    ]  # fmt: skip
    assert "surely better than the best of naive, seasonal naive and drift" in out
    assert "values from 'sold'" in err
    found = json.loads(say("eval", run, "--json")[1])["evaluation"]
    assert found["wql"] == pytest.approx(float(lines[2][2]), rel=1e-3)
    assert found["sequences"] == 4


def test_the_next_values_are_printed_and_written(run: str, sold: Path, say: Say) -> None:
    code, out, err = say("predict", run)
    assert code == 0, err
    assert out.splitlines()[0].split() == ["series", "time", "forecast", *QUANTILES]
    assert say("predict", run, "sold.csv", "--out", "next.csv")[0] == 0
    with (sold / "next.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["time"] for row in rows] == ["2024-03-01", "2024-03-02", "2024-03-03"] * 2
    assert [row["series"] for row in rows] == ["north"] * 3 + ["south"] * 3
    for row in rows:
        levels = [float(row[name]) for name in QUANTILES]
        assert levels == sorted(levels)
        assert float(row["forecast"]) == float(row["q0.5"])
    assert say("predict", run, "sold.csv", "--out", "next.jsonl")[0] == 0
    lines = (sold / "next.jsonl").read_text(encoding="utf-8").splitlines()
    assert float(json.loads(lines[4])["q0.9"]) == pytest.approx(float(rows[4]["q0.9"]))
    machine = json.loads(say("predict", run, "--json")[1])
    assert [one["time"] for one in machine["forecasts"]] == [row["time"] for row in rows]


def test_values_that_leave_their_interval_are_shown_with_the_rate_on_held_out_data(
    run: str, sold: Path, say: Say
) -> None:
    text = (sold / "sold.csv").read_text(encoding="utf-8")
    (sold / "odd.csv").write_text(text.replace("2024-02-05;south;32", "2024-02-05;south;3200"))
    code, out, err = say("predict", run, "odd.csv", "--anomalies")
    assert code == 0, err
    # the outlier stands first, and behind all others what was expected of it a week later
    lines = [line.split() for line in out.splitlines()[2:]]
    first, last = lines[0], lines[-1]
    assert (first[:2], first[-2:]) == (["south", "2024-02-05"], ["no", "yes"])
    assert (last[:2], last[-2:]) == (["south", "2024-02-12"], ["yes", "yes"])
    assert "1 of these may be an echo: their interval follows a value that left its own 7 st" in err
    assert "leave their interval" in err
    assert "where 2.0% should" in err
    assert "on the run's held-out data" in err
    assert say("predict", run, "odd.csv", "--anomalies", "--out", "all.csv")[0] == 0
    with (sold / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["series", "time", "value", "low", "high", "echo", "anomaly"]
    assert len(rows) == 2 * 59


def test_a_fan_chart_is_drawn(run: str, say: Say) -> None:
    code, out, err = say("show", run, "forecast", "--format", "svg")
    assert code == 0, err
    picture, about = out.splitlines()
    drawn = Path(picture).read_text(encoding="utf-8")
    assert all(name in drawn for name in ("north", "south", "98%", "true"))
    assert about.strip().startswith("The last held-out forecast of 2 of 2 series: 3 steps ahead")


@pytest.mark.full("half a minute", parts=3)
def test_members_are_compared_by_their_weighted_quantile_loss(sold: Path, say: Say) -> None:
    words = ("--data", "sold.csv", "--task", "forecast", "--data.value-column", "sold")
    budget = ("--steps", "4", "--lengths", "--out", "versus", *SIZES)
    code, out, err = say("compare", "linear", "transformer-xl", *words, *budget)
    assert code == 0, err
    assert "weighted quantile loss" in out
    page = (sold / "versus" / "report.html").read_text(encoding="utf-8")
    assert "the best of naive, seasonal naive and drift" in page


def test_a_table_of_times_and_numbers_is_forecast_unless_another_task_is_said(
    sold: Path, say: Say
) -> None:
    rows = "\n".join(f"2024-01-{day:02d},{day % 7}" for day in range(1, 31))
    (sold / "wide.csv").write_text(f"date,a\n{rows}\n", encoding="utf-8")
    code, _, err = say(
        "train", "linear", "--data", "wide.csv", "--steps", "1", "--out", "w", *SIZES
    )
    assert code == 0, err
    assert "task forecast; 1 series daily (a), a season of 7, 7 steps ahead" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--horizon", "99"), "too few to hold out 99 and have two before them"),
        (("--data.time-column", "shop"), "'north' in 'shop' is no time"),
        (("--data.series-column", "shelf"), "no column 'shelf' for --data.series-column"),
        (("--data.text-column", "shop"), "--data.text-column has no meaning for series with times"),
        (("--model.quantiles", "0.1", "0.9"), "must ascend above 0 and below 1, with 0.5"),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_sentence(
    sold: Path, refused: Refused, words: tuple[str, ...], told: str
) -> None:
    known = ("--data.value-column", "sold", "--steps", "1", "--out", "made")
    start = ("train", "linear", "--data", "sold.csv", "--task", "forecast", *SIZES, *known)
    assert told in refused(*start, *words)


def test_other_series_are_measured_as_the_run_s_own_or_refused(
    run: str, sold: Path, say: Say, refused: Refused
) -> None:
    text = (sold / "sold.csv").read_text(encoding="utf-8").splitlines()
    north = [line for line in text if ";south;" not in line]
    (sold / "north.csv").write_text("\n".join(north), encoding="utf-8")
    code, out, err = say("eval", run, "--data", "north.csv", "--data.validation", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["evaluation"]["sequences"] == 17
    weekly = [north[0], *north[1::7]]
    (sold / "weekly.csv").write_text("\n".join(weekly), encoding="utf-8")
    told = refused("eval", run, "--data", "weekly.csv")
    assert "have values weekly, but the model was trained on such that have them daily" in told
    assert "forecasts 3 steps ahead: leave out --horizon 5" in refused(
        "eval", run, "--horizon", "5"
    )


def test_options_of_other_runs_are_refused(run: str, refused: Refused) -> None:
    assert "--top has no meaning for a run that forecasts" in refused("predict", run, "--top", "2")
    assert "give one table" in refused("predict", run, "sold.csv", "sold.csv")
