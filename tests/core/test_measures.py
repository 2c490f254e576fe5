"""Metrics are rows of a table: written, said and ranked by it."""

import subprocess
import sys
from typing import Any

import pytest

from everyformer.core.measures import METRICS
from everyformer.core.tasks import TASKS
from everyformer.lab.compare.results import Metric
from everyformer.lab.compare.summary import member_row, rank, time_to

COUNTS = ("tokens_per_second", "tokens", "flops", "steps", "seconds")


@pytest.mark.parametrize(
    ("metric", "value", "written", "said", "axis", "best"),
    [
        ("bits_per_byte", 2.0, "2.000", "2.000 bits per byte (lower is better)",
         "bits per byte (lower is better)", 1.0),
        ("accuracy", 0.5, "50.0%", "50.0% of the validation set right",
         "accuracy (%, higher is better)", 3.0),
        ("mae", 12.3456, "12.35", "a mean absolute error of 12.35 (lower is better)",
         "mean absolute error (lower is better)", 1.0),
        ("rmse", 0.001234, "0.001234", "a root mean square error of 0.001234 (lower is better)",
         "root mean square error (lower is better)", 1.0),
        ("r2", -0.25, "-0.250", "an R² of -0.250 (1 is best)", "R² (higher is better)", 3.0),
    ],
)  # fmt: skip
def test_a_metric_is_written_said_and_ranked(
    metric: Metric, value: float, written: str, said: str, axis: str, best: float
) -> None:
    assert {name for task in TASKS.values() for name in task.metrics} <= {*METRICS}
    how = METRICS[metric]
    assert (how.written(value), how.sentence(value), how.axis) == (written, said, axis)
    rows: Any = [{"status": "done", "seeds": 1, "quality": each} for each in (2.0, 1.0, 3.0)]
    assert rank(rows, metric)[0]["quality"] == best


STEPS: Any = [
    {"seconds": seconds, "evaluation": {"loss": loss, "accuracy": 1 - loss}}
    for seconds, loss in ((10.0, 0.9), (20.0, 0.7), (40.0, 0.3))
]


@pytest.mark.parametrize(
    ("target", "seconds"),
    [(1.0, 10.0), (0.9, 10.0), (0.8, 15.0), (0.7, 20.0), (0.6, 25.0), (0.3, 40.0), (0.2, None)],
)
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_time_until_as_good_is_linear_between_evaluations(
    metric: Any, target: float, seconds: float | None
) -> None:
    wanted = target if metric == "loss" else 1 - target
    found = time_to(wanted, [STEPS], metric)
    assert found is None if seconds is None else found == pytest.approx(seconds)


def test_the_time_until_as_good_is_that_of_the_mean_of_seeds() -> None:
    """A row matches itself at its end, whatever its first seed came to."""
    lucky: Any = [
        {"seconds": seconds, "evaluation": {"loss": loss}}
        for seconds, loss in ((8.0, 0.5), (44.0, 0.2))
    ]
    ends = [0.2, 0.3]
    # at 40 seconds the lucky one is at 0.2 + 0.3 / 9, the other at 0.3
    # at 8 seconds the other was not looked at
    for target, seconds in (
        (sum(ends) / 2, 44.0),
        (0.7, 10.0),
        ((0.2 + 0.3 / 9 + 0.3) / 2, 40.0),
        (0.2, None),
    ):
        found = time_to(target, [lucky, STEPS], "loss")
        assert found is None if seconds is None else found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("values", "half"),
    [
        # t of one degree of freedom is 12.706, of the mean of two 1 / sqrt(2) of their deviation
        ((2.0, 2.2), 12.706 * 0.1),
        ((1.0, 2.0, 6.0), 4.3027 * 7**0.5 / 3**0.5),
    ],
)
def test_an_interval_over_seeds_is_students_of_their_mean(
    values: tuple[float, ...], half: float
) -> None:
    runs: Any = [
        {
            "evaluation": {"loss": value, "loss_interval": [value - 9, value + 9]},
            **dict.fromkeys(COUNTS, 1.0),
        }
        for value in values
    ]
    row = member_row("gmlp", TASKS["lm"], 7, runs, "loss")
    mean = sum(values) / len(values)
    assert (row["interval_of"], row["quality"]) == ("seeds", pytest.approx(mean))
    assert row["interval"] == pytest.approx([mean - half, mean + half], rel=1e-4)
    alone = member_row("gmlp", TASKS["lm"], 7, runs[:1], "loss")
    assert alone["interval"] == [values[0] - 9, values[0] + 9]
    assert alone["interval_of"] == "validation sequences"


@pytest.mark.parametrize(
    ("seeds", "beats"),
    [
        # accuracy with its interval, beside 0.5 of the commonest class
        ([(0.6, 0.55, 0.65)], True),
        ([(0.6, 0.45, 0.75)], False),
        ([(0.4, 0.35, 0.45)], False),
        ([(0.6, 0.55, 0.65), (0.7, 0.65, 0.75)], True),
        ([(0.6, 0.55, 0.65), (0.52, 0.45, 0.6)], False),
    ],
)
def test_a_member_beats_a_constant_answer_if_each_of_its_trainings_does(
    seeds: list[tuple[float, float, float]], beats: bool
) -> None:
    runs: Any = [
        {
            "evaluation": {
                "loss": 1.0,
                "accuracy": value,
                "accuracy_interval": [low, high],
                "majority_accuracy": 0.5,
            },
            **dict.fromkeys(COUNTS, 1.0),
        }
        for value, low, high in seeds
    ]
    row = member_row("bert", TASKS["classify-text"], 7, runs, "accuracy")
    assert (row["baseline"], row["beats_baseline"]) == (0.5, beats)


@pytest.mark.parametrize(("errors", "beats"), [((1.0, 1.5), True), ((0.1, 2.5), False)])
def test_a_member_beats_the_means_of_several_numbers_if_it_does_for_each(
    errors: tuple[float, float], beats: bool
) -> None:
    each = [{"number": n, "rmse": rmse, "mean_rmse": 2.0} for n, rmse in enumerate(errors, 1)]
    whole = {"loss": 0.25, "scaled_rmse": 0.5, "mean_scaled_rmse": 1.0, "by_number": each}
    runs: Any = [{"evaluation": whole, **dict.fromkeys(COUNTS, 1.0)}]
    metric = TASKS["regress-series"].metric(runs[0]["evaluation"])
    row = member_row("bert", TASKS["regress-series"], 7, runs, metric)
    assert (metric, row["quality"], row["beats_baseline"]) == ("scaled_rmse", 0.5, beats)
    assert row["baseline_words"] == "always giving the mean for each of 2 numbers"


@pytest.mark.parametrize(("peak", "told"), [(None, None), (27, None), (28, 28), (5000, 5000)])
def test_less_memory_than_the_weights_take_is_not_told(peak: int | None, told: int | None) -> None:
    known: Any = {"peak_bytes": peak}
    done: Any = {"status": "done", "evaluation": {"loss": 1.0}, **dict.fromkeys(COUNTS, 1.0)}
    assert member_row("gmlp", TASKS["lm"], 7, [done], "loss", known)["peak_bytes"] == told


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are reset on Linux alone")
def test_a_training_among_holes_of_an_earlier_one_claims_its_memory() -> None:
    """Small blocks went where others had been, and 4 KiB were told of a whole training."""
    program = """
from types import SimpleNamespace as Any
from everyformer.lab.compare import rounds

rounds.return_freed_memory()
full = [bytearray(60_000) for _ in range(2_000)]
del full[::2]
rounds._row_seconds = lambda run, dataset: 0.0
rounds._few_steps = lambda *given: [bytearray(60_000) for _ in range(800)] and {}
run = Any(training=Any(device="cpu", precision="float32"))
print(rounds._first(run, None).peak_bytes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(done.stdout) == pytest.approx(800 * 60_000, rel=0.2), done.stderr
