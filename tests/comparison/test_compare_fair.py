"""Budgets in seconds are fair: steps by the quietest of several rounds, and doubts said aloud."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everyformer.benchmark.points import Point
from everyformer.cli import main
from everyformer.comparison import calibration, timing
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.estimate import Estimate
from everyformer.comparison.plan import Entrant, job
from everyformer.comparison.verdict import letters, same_functions, verdict
from everyformer.core.stopping import Gentle
from everyformer.models.build import configure
from everyformer.training import loop as training_loop
from everyformer.training.config import TrainingConfig

Compare = Callable[..., Any]
Times = list[tuple[str, float]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Times:
    """The members that were timed, in order, with seconds a step that are given to them: the
    first, which only says how long a round is, then 0.003, 0.002, 0.004 for all, doubled for
    gmlp."""
    calls: Times = []
    monkeypatch.setattr(calibration, "MOST", 1e9)
    rounds = (0.001, 0.003, 0.002, 0.004)

    def time_steps(run: Any, dataset: Any, steps: int) -> dict[str, float]:
        number = sum(name == run.member for name, _ in calls)
        seconds = rounds[number] * (2 if run.member == "gmlp" else 1)
        calls.append((run.member, seconds))
        return {"steps": 1, "seconds": seconds, "cpu_seconds": 0.5, "tokens": 64, "flops": 1e6}

    monkeypatch.setattr(calibration, "time_steps", time_steps)
    return calls


def test_seconds_are_worth_the_steps_of_the_quietest_round(compare: Compare, timed: Times) -> None:
    done = compare("aft-simple", "gmlp", "--budget-seconds", "0.01")
    assert {run["member"]: run["steps"] for run in done.results["runs"]} == {
        "aft-simple": 5,
        "gmlp": 3,
    }
    told = done.row("gmlp")["calibrated"]
    assert (told["seconds"], told["rounds"]) == (0.004, [0.006, 0.004, 0.008])
    assert (told["cpu_seconds"], told["steps"]) == (0.5, 3)
    training = done.job("runs/gmlp-seed0")["run"]["training"]
    assert (training["steps"], training["budget_seconds"]) == (3, None)


def test_members_are_timed_in_turn(compare: Compare, timed: Times) -> None:
    compare("aft-simple", "gmlp", "--budget-seconds", "0.01")
    assert [name for name, _ in timed] == ["aft-simple", "gmlp"] * 4


def test_a_member_whose_steps_are_long_is_not_timed_for_longer_than_a_part_of_its_budget(
    compare: Compare, timed: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "MOST", 0.25)
    clock = itertools.count(step=0.0015)
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    done = compare("gmlp", "--budget-seconds", "0.01")
    # 0.0015 s each: two are more than a quarter of the budget
    assert [name for name, _ in timed] == ["gmlp"] * 2
    assert done.row("gmlp")["calibrated"]["rounds"] == [0.006]


def test_a_budget_that_is_no_time_is_timed_once_for_the_plan(
    compare: Compare, timed: Times
) -> None:
    done = compare("aft-simple", "gmlp", "--steps", "2")
    assert [name for name, _ in timed] == ["aft-simple", "gmlp"]
    assert "2 trainings of 2 steps each" in done.err
    assert {run["steps"] for run in done.results["runs"]} == {2}


def test_more_seconds_go_on_with_the_same_speeds(compare: Compare, timed: Times) -> None:
    compare("aft-simple", "--budget-seconds", "0.01")
    timed.clear()
    done = compare("--resume", "--budget-seconds", "0.02", small=False)
    assert timed == []
    assert [run["steps"] for run in done.results["runs"]] == [10]


def test_a_member_that_ends_the_timing_is_left_to_its_own_training(
    compare: Compare, timed: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, ends = calibration._measure, {"gmlp"}

    def dying(measured: Any, name: str, *rest: Any) -> None:
        if name in ends:
            raise SystemExit
        measure(measured, name, *rest)

    def process(module: str, folder: Path, stop: Gentle) -> int:
        try:
            return calibration.main(folder)
        except SystemExit:
            return -signal.SIGKILL

    monkeypatch.setattr(calibration, "_measure", dying)
    monkeypatch.setattr(calibration, "launch", process)
    done = compare("gmlp", "aft-simple", "--budget-seconds", "0.01")
    assert done.code == 0, done.err
    assert done.row("aft-simple")["steps"] == 5
    assert done.row("gmlp")["calibrated"] is None
    doubts = " ".join(done.results["verdict"]["doubts"])
    assert "the speed of gmlp could not be measured beforehand" in doubts


def test_a_stop_while_steps_are_timed_comes_after_a_step(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    step = training_loop._Job._step

    def stopped(job: Any) -> None:
        steps.append(job.dataset.name)
        step(job)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(training_loop._Job, "_step", stopped)
    done = compare("gmlp", "aft-simple", "--steps", "50")
    assert done.code == 143
    assert len(steps) == 1


def test_what_will_be_done_is_said_before_it_starts(compare: Compare, timed: Times) -> None:
    err = compare("aft-simple", "gmlp", "--budget-seconds", "0.01", "--seeds", "2").err
    plan = next(line for line in err.splitlines() if "trainings of" in line)
    assert plan.startswith("4 trainings of 0.01 seconds (steps: aft-simple 5 and gmlp 3) each")
    assert re.search(r"about (\d+ min )?\d+ s in all", plan)
    assert "of memory" in plan
    assert err.index(plan) < err.index("[1 of 4] aft-simple-seed0")
    assert "[4 of 4] gmlp-seed1" in err


def row(member: str = "gmlp", **values: Any) -> dict[str, Any]:
    """A row as far as a verdict reads it."""
    speed = {"seconds": 0.1, "rounds": [0.1, 0.11], "cpu_seconds": 0.2, "steps": 100}
    usual = {
        "member": member,
        "quality": 2.0,
        "interval": [1.9, 2.1],
        "steps": 100,
        "tokens": 6400,
        "tokens_per_second": 640.0,
        "letters": ["a"],
        "load": 1.0,
        "calibrated": speed,
    }
    return usual | values


@pytest.mark.parametrize("seed", range(20))
def test_members_share_a_letter_if_and_only_if_their_intervals_share_a_value(seed: int) -> None:
    draw = random.Random(seed)
    spans = [sorted((draw.randrange(30), draw.randrange(30))) for _ in range(draw.randint(1, 40))]
    rows: Any = [row(quality=sum(s) / 2, interval=s) for s in spans]
    rows.sort(key=lambda r: r["quality"])
    found = letters(rows)
    for (a, own), (b, other) in itertools.combinations(zip(rows, found, strict=True), 2):
        low, high = (
            max(a["interval"][0], b["interval"][0]),
            min(a["interval"][1], b["interval"][1]),
        )
        assert bool(set(own) & set(other)) == (low <= high)
    assert all(found)
    assert "a" in found[0]


def test_a_row_without_an_interval_is_its_value() -> None:
    rows: Any = [row(interval=None, quality=q) for q in (1.0, 2.0, 2.0)]
    assert letters(rows) == [["a"], ["b"], ["b"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"load": 2.4}, None),
        ({"load": 3.1}, "3.1 threads wanted its 2 cores"),
        ({"calibrated": None}, "the speed of gmlp could not be measured"),
        ({"tokens_per_second": 640 / 1.3}, "speeds scattered (gmlp by 30%)"),
        ({"tokens_per_second": 640 * 1.3}, "speeds scattered (gmlp by 43%)"),
        ({"tokens_per_second": 640 / 1.2}, None),
        ({"steps": 49, "tokens": 3136}, "fewer than 50 steps were made (gmlp 49)"),
        ({"steps": 50, "tokens": 3200}, None),
    ],
)
def test_seconds_that_were_not_shared_evenly_are_doubted(
    change: dict[str, Any], said: str | None
) -> None:
    rows: Any = [row(**change), row("attention", letters=["b"])]
    doubts = verdict(rows, in_seconds=True, cores=2)["doubts"]
    assert doubts == [] if said is None else said in "; ".join(doubts)


def test_equal_steps_are_fair_on_any_machine() -> None:
    rows: Any = [row(load=9.0, calibrated=None, tokens_per_second=1.0)]
    assert verdict(rows, in_seconds=False, cores=2) == {"best": ["gmlp"], "doubts": []}


def test_the_best_are_all_that_share_a_letter_with_the_first() -> None:
    tiers = [["a"], ["a", "b"], ["b"], ["a"]]
    rows: Any = [row(name, letters=t) for name, t in zip("wxyz", tiers, strict=True)]
    assert verdict(rows, in_seconds=True, cores=2)["best"] == ["w", "x", "z"]


def test_equal_losses_to_the_last_digit_are_one_function() -> None:
    losses = {"attention": [3.0, 2.0], "bigbird": [3.0, 2.0], "gmlp": [3.0, 2.0 + 1e-15]}
    runs: Any = [
        {"member": m, "evaluations": [{"evaluation": {"loss": v}} for v in values]}
        for m, values in losses.items()
    ]
    rows: Any = [row(member) for member in losses]
    assert same_functions(rows, runs) == [["bigbird"], ["attention"], []]
    # a store is read when the training is over
    rows[1]["quality"] = 1.5
    assert same_functions(rows, runs) == [[], [], []]


def test_the_parts_of_the_whole_follow_one_another() -> None:
    members = ("gmlp", "attention")
    config = CompareConfig(members=members, seeds=2, training=TrainingConfig(steps=10))
    speed: Any = {"seconds": 0.1, "rounds": [0.1], "cpu_seconds": 0.1, "steps": 10}
    ready = [Entrant(m, configure(m, "lm", max_length=8), 1) for m in members]
    estimate = Estimate(config, ready, dict.fromkeys(members, speed))
    assert estimate.trainings == 4
    end, after = 0.0, estimate.seconds
    for number, (entrant, seed) in enumerate(itertools.product(ready, (0, 1)), start=1):
        planned = job(config, entrant, seed, 0.001)
        part = estimate.part(planned)
        assert (part.number, part.of) == (number, 4)
        assert part.begin == pytest.approx(end)
        assert end < part.end < 1
        assert part.after < after
        end, after = part.end, part.after
        estimate.over(planned, seconds=estimate._each[entrant.member])


def test_what_is_left_follows_what_it_really_took() -> None:
    config = CompareConfig(members=("gmlp",), seeds=2, training=TrainingConfig(steps=10))
    ready = [Entrant("gmlp", configure("gmlp", "lm", max_length=8), 1)]
    estimate = Estimate(config, ready, {})
    first, second = (job(config, ready[0], seed, 0.001) for seed in (0, 1))
    expected = estimate._each["gmlp"]
    estimate.over(first, seconds=3 * expected)
    rest = estimate.seconds - 2 * expected
    assert estimate.part(second).after == pytest.approx(3 * rest)


def test_a_page_is_written_after_every_member(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[tuple[list[str], bool]] = []

    def drawn(results: Any, folder: Path, complete: bool) -> None:
        pages.append((results["waiting"], complete))

    monkeypatch.setattr("everyformer.report.comparison.write_report", drawn)
    compare("gmlp", "attention", "aft-simple", "--steps", "1")
    assert pages == [
        (["attention", "aft-simple"], False),
        (["aft-simple"], False),
        ([], False),
        ([], True),
    ]


def test_a_stop_before_anything_is_looked_at_again_leaves_the_table(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [Point("gmlp", 8, seconds=1.0), Point("attention", 8, seconds=1.0)]
    monkeypatch.setattr(timing, "bench", lambda names, *_, **__: iter(points))
    done = compare("gmlp", "--steps", "1", "--lengths", "8")
    before = done.results["rows"]

    def stopped(*given: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    monkeypatch.setattr("everyformer.comparison.compare.calibrate", stopped)
    again = compare("--resume", small=False)
    assert again.code == 143
    assert again.results["rows"] == before
    assert len(before) == 1


def test_layers_are_timed_once(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def measured(names: list[str], lengths: list[int], **given: Any) -> Any:
        asked.extend((name, length) for name in names for length in lengths)
        return (Point(n, length, seconds=float(length)) for length in lengths for n in names)

    monkeypatch.setattr(timing, "bench", measured)
    compare("gmlp", "--steps", "1", "--lengths", "8", "16")
    assert asked == [("attention", 8), ("attention", 16), ("gmlp", 8), ("gmlp", 16)]
    asked.clear()
    done = compare("--resume", "--lengths", "8", "32", small=False)
    assert asked == [("attention", 32), ("gmlp", 32)]
    assert {(p["member"], p["length"]) for p in done.results["bench"]} == {
        ("attention", 8),
        ("attention", 32),
        ("gmlp", 8),
        ("gmlp", 32),
    }


def test_the_next_commands_name_paths_that_are_there(compare: Compare, tree: Path) -> None:
    done = compare("gmlp", "--steps", "2")
    commands = dict(done.results["next"])
    assert list(commands) == ["use gmlp", "look into it", "train it twice as long"]
    assert all(command in done.out for command in commands.values())
    words = commands["train it twice as long"].split()
    assert words[-2:] == ["--steps", "4"]
    assert main(words[1:]) == 0
    again = compare("--resume", small=False)
    assert again.runs("gmlp")[0]["steps"] == 2
    assert max(line["step"] for line in again.runs("gmlp")[0]["evaluations"]) == 2


def test_train_and_compare_have_the_same_defaults_of_batch_and_evaluation() -> None:
    for config in (TrainingConfig(), CompareConfig().training):
        assert (config.batch, config.evaluate_every, config.evaluate_sequences) == (16, 100, 256)
