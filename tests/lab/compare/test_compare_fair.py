"""Budgets in seconds are fair: steps by rounds in which all take turns, and doubts said aloud."""

import dataclasses
import itertools
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.core.tasks import TASKS
from everyformer.data.config import DataConfig
from everyformer.lab.bench.points import Point
from everyformer.lab.compare import calibration, timing
from everyformer.lab.compare import rounds as rounds_of
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.decoding import Decoded
from everyformer.lab.compare.estimate import PAGE, PAGE_OF_MEMBER, PAGE_SO_FAR, START, Estimate
from everyformer.lab.compare.plan import Candidate, job
from everyformer.lab.compare.verdict import same_functions, verdict
from everyformer.models.build import configure
from everyformer.system.signals import GracefulStop, Stopped
from everyformer.training import loop as training_loop
from everyformer.training.config import TrainingConfig
from everyformer.training.spec import RunSpec, preset

Compare = Callable[..., Any]


class Timed(list[str]):
    """The members that were timed, in order: the first time only says how long a round is."""

    def __init__(self) -> None:
        self.rounds: dict[str, tuple[float, ...]] = {}
        """seconds a step that are given to a member, time after time"""
        self.asked: list[tuple[int, int, int]] = []
        """rows, steps and steps to warm up"""
        self.fails: Callable[[str], BaseException | None] = lambda member: None

    def __call__(self, run: Any, dataset: Any, steps: int, warm_up: int = 1) -> dict[str, float]:
        if (error := self.fails(run.member)) is not None:
            raise error
        usual = (0.001, 0.003, 0.002, 0.004)
        twice = 2 if run.member == "gmlp" and not self.rounds else 1
        seconds = self.rounds.get(run.member, usual)[self.count(run.member)] * twice
        self.append(run.member)
        self.asked.append((run.training.batch, steps, warm_up))
        return {"steps": 1, "seconds": seconds, "cpu_seconds": 0.5, "tokens": 64, "flops": 1e6}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """0.003, 0.002, 0.004 seconds a step for all, doubled for gmlp."""
    calls = Timed()
    monkeypatch.setattr(rounds_of, "ROUNDS", 3)
    monkeypatch.setattr(rounds_of, "peak_of", lambda call, device: call() or 3 << 20)
    monkeypatch.setattr(rounds_of, "_row_seconds", lambda run, dataset: 0.0)
    monkeypatch.setattr(rounds_of, "time_steps", calls)
    return calls


def test_seconds_are_worth_the_steps_of_the_quietest_round(
    compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No member pays for what a process does once, and what will be done is said before."""
    warmed: list[tuple[str, int]] = []
    warm = lambda run, _: warmed.append((run.member, len(timed))) or 0.0  # noqa: E731
    monkeypatch.setattr(rounds_of, "_row_seconds", warm)
    done = compare("aft-simple", "gmlp", "--budget-seconds", "0.01", "--seeds", "2")
    assert warmed == [("aft-simple", 0), ("gmlp", 1)]
    assert {(run["member"], run["steps"]) for run in done.results["runs"]} == {
        ("aft-simple", 5), ("gmlp", 3),
    }  # fmt: skip
    calibrated = done.row("gmlp")["calibrated"]
    assert (calibrated["seconds"], calibrated["rounds"]) == (
        pytest.approx(0.004),
        [0.006, 0.004, 0.008],
    )
    assert (calibrated["cpu_seconds"], calibrated["steps"]) == (0.5, 3)
    training = done.job("runs/gmlp-seed0")["run"]["training"]
    assert (training["steps"], training["budget_seconds"]) == (3, None)
    plan = next(line for line in done.err.splitlines() if "trainings of" in line)
    assert plan.startswith("4 trainings of 0.01 seconds (steps: aft-simple 5 and gmlp 3) each")
    assert re.search(r"about (\d+ min )?\d+ s in all", plan)
    assert "up to 3.0 MiB of memory" in plan
    assert done.err.index(plan) < done.err.index("[1 of 4] aft-simple-seed0")
    assert "[4 of 4] gmlp-seed1" in done.err
    # more seconds continue with the same speeds
    timed.clear()
    done = compare("--resume", "--budget-seconds", "0.02", small=False)
    assert timed == []
    assert {run["steps"] for run in done.runs("aft-simple")} == {10}


@pytest.mark.full("comparisons, seconds")
@pytest.mark.parametrize(("seconds", "steps"), [(0.9, (2, 1)), (1.1, (1, 0))])
def test_where_one_row_takes_more_than_half_a_second_a_round_is_one_step(
    seconds: float, steps: tuple[int, int], compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed()
    timed.rounds["aft-simple"] = (seconds,) * 3
    monkeypatch.setattr(rounds_of, "time_steps", timed)
    done = compare("aft-simple", "--steps", "1", "--training.accumulate", "2")
    assert done.code == 0, done.err
    # first as few rows as a step can have, which are two; then the memory, then a round
    assert timed.asked == [(2, 2, 1), (4, *steps), (4, *steps)]


@pytest.mark.full("comparisons, seconds")
@pytest.mark.parametrize(("allowed", "rounds"), [(0.0019, 1), (0.0021, 2), (9.0, 3)])
def test_members_that_take_long_together_have_fewer_rounds_all_of_them(
    allowed: float, rounds: int, compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a round takes 0.002 s of either, and so much may be spent on each
    monkeypatch.setattr(rounds_of, "MOST", 0.0)
    monkeypatch.setattr(rounds_of, "ALLOWED", allowed)
    clock = itertools.count(step=0.002)
    monkeypatch.setattr(rounds_of, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    done = compare("aft-simple", "gmlp", "--budget-seconds", "0.01")
    assert timed == ["aft-simple", "gmlp"] * (1 + rounds)
    for member in ("aft-simple", "gmlp"):
        assert len(done.row(member)["calibrated"]["rounds"]) == rounds


@pytest.mark.parametrize("budget", [("--steps", "2"), ("--budget-tokens", "128")])
def test_all_speeds_are_of_rounds_in_turn_whatever_the_budget_is(
    compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch, budget: tuple[str, str]
) -> None:
    monkeypatch.setattr(rounds_of, "ROUNDS", 5)
    seconds = (9.0, 0.004, 0.002, 0.001, 0.008, 0.016)
    timed.rounds = {"aft-simple": seconds, "gmlp": tuple(2 * one for one in seconds)}
    writing = iter(range(1, 100))
    monkeypatch.setattr(
        rounds_of, "decode", lambda config, **given: Decoded({"4": next(writing) / 1000}, {"4": 12})
    )
    done = compare("aft-simple", "gmlp", *budget)
    assert {run["steps"] for run in done.results["runs"]} == {2}
    row = done.row("aft-simple")
    # medians; quartiles of 1/16, 1/8, 1/4, 1/2 and 1 lie halfway between the two outermost
    assert row["tokens_per_second"] == pytest.approx(64 / 0.004)
    assert row["speed_spread"] == pytest.approx([64 * (1 / 0.016 + 1 / 0.008) / 2, 64 * 750])
    assert done.row("gmlp")["tokens_per_second"] == pytest.approx(64 / 0.008)
    # the tokens of aft-simple were the 1st, 3rd ... 11th that were timed, the 1st before the rounds
    assert (row["decode_ms"], row["decode_spread"]) == ({"4": 7.0}, {"4": [4.0, 10.0]})
    assert row["state_bytes"] == 12


def test_a_round_that_was_cut_short_is_measured_again_with_all(
    compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.fails = lambda member: Stopped(signal.SIGTERM) if len(timed) == 5 else None
    assert compare("aft-simple", "gmlp", "--budget-seconds", "0.01").code == 143
    timed.fails = lambda member: None
    # both were timed once before the rounds and once in the first, one in the second
    assert timed == ["aft-simple", "gmlp", "aft-simple", "gmlp", "aft-simple"]
    timed[:] = timed[:4]
    done = compare("--resume", small=False)
    assert done.code == 0
    assert timed[4:] == ["aft-simple", "gmlp"] * 2
    assert {len(row["calibrated"]["rounds"]) for row in done.results["rows"]} == {3}
    # the quietest of all rounds, not of those before the stop
    assert done.row("aft-simple")["calibrated"]["seconds"] == pytest.approx(0.002)


def test_members_are_measured_again_with_one_that_failed_and_keep_what_seconds_were_worth(
    compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed.fails = lambda member: RuntimeError("today") if member == "gmlp" else None
    before = compare("aft-simple", "gmlp", "--budget-seconds", "0.01").row("aft-simple")
    timed.fails = lambda member: None
    timed.clear()
    after = compare("--resume", small=False)
    assert (before["steps"], after.row("aft-simple")["steps"]) == (5, 5)
    # by now 0.001 s would be worth 10 steps; reported are the rounds with both
    assert after.row("aft-simple")["calibrated"]["rounds"] == [0.001, 0.003, 0.002]
    assert after.row("gmlp")["calibrated"]["rounds"] == [0.006, 0.004, 0.008]


def test_seconds_are_worth_the_steps_of_one_round_for_all(
    compare: Compare, monkeypatch: pytest.MonkeyPatch, timed: Timed
) -> None:
    # the quietest for both together is the third: the best of each alone are other rounds
    timed.rounds = {
        "attention": (0.2, 0.1, 0.3, 0.14, 0.344, 0.323),
        "learned": (0.2, 0.328, 0.12, 0.16, 0.322, 0.308),
    }
    monkeypatch.setattr(rounds_of, "ROUNDS", 5)
    done = compare("attention", "learned", "--budget-seconds", "1.4")
    known = {name: done.row(name)["calibrated"] for name in timed.rounds}
    assert [known[name]["seconds"] for name in known] == [0.14, 0.16]
    assert [known[name]["steps"] for name in known] == [10, 9]


def test_two_names_of_one_function_are_timed_once_and_learn_the_same(
    compare: Compare, timed: Timed
) -> None:
    done = compare("attention", "gmlp", "sinusoidal", "--budget-seconds", "0.01")
    assert timed == ["attention", "gmlp"] * 4
    first, second = done.row("attention"), done.row("sinusoidal")
    assert first["calibrated"] == second["calibrated"]
    assert (first["steps"], first["quality"]) == (second["steps"], second["quality"])
    assert (first["same_as"], done.row("gmlp")["same_as"]) == (["sinusoidal"], [])


def test_names_that_differ_in_their_model_or_their_data_are_two_functions() -> None:
    model = configure("attention", "classify-text", max_length=16, classes=3)
    ready = [
        Candidate(name, None, dataclasses.replace(model, member=name, causal=name == "learned"), 1)
        for name in ("attention", "sinusoidal", "learned", "rope")
    ]
    runs = {e.member: RunSpec(e.member) for e in ready}
    runs["rope"] = dataclasses.replace(runs["rope"], data=DataConfig(length=8))
    assert calibration._representatives(ready, runs) == {
        "attention": "attention",
        "sinusoidal": "attention",
        "learned": "learned",
        "rope": "rope",
    }


def test_a_member_that_ends_the_timing_is_left_to_its_own_training(
    compare: Compare, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, ends = rounds_of._measure, {"gmlp"}

    def dying(known: Any, run: Any, *rest: Any) -> Any:
        if run.member in ends:
            raise SystemExit
        return measure(known, run, *rest)

    def process(module: str, folder: Path, stop: GracefulStop) -> int:
        try:
            return rounds_of.main(folder)
        except SystemExit:
            return -signal.SIGKILL

    monkeypatch.setattr(rounds_of, "_measure", dying)
    monkeypatch.setattr(calibration, "launch", process)
    done = compare("gmlp", "aft-simple", "--budget-seconds", "0.01")
    assert done.code == 0, done.err
    assert done.row("aft-simple")["steps"] == 5
    assert done.row("gmlp")["calibrated"] is None
    doubts = " ".join(done.results["verdict"]["doubts"])
    assert "the speed of gmlp could not be measured beforehand" in doubts


@pytest.mark.usefixtures("steps_timed")
def test_a_stop_while_steps_are_timed_comes_after_a_step(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    update = training_loop.update

    def stopped(session: Any, dataset: Any) -> Any:
        steps.append(dataset.name)
        done = update(session, dataset)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(training_loop, "update", stopped)
    done = compare("gmlp", "aft-simple", "--steps", "50")
    assert done.code == 143
    assert len(steps) == 1


def row(member: str = "gmlp", **values: Any) -> dict[str, Any]:
    """A row as far as a verdict reads it."""
    speed = {"seconds": 0.1, "rounds": [0.1, 0.11], "cpu_seconds": 0.2, "steps": 100}
    usual = {
        "member": member,
        "quality": 2.0,
        "interval": [1.9, 2.1],
        "steps": 100,
        "tokens": 6400,
        "trained_tokens_per_second": 640.0,
        "baseline": None,
        "beats_baseline": None,
        "letters": ["a"],
        "values": [2.0],
        "load": 1.0,
        "calibrated": speed,
    }
    return usual | values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"load": 2.4}, None),
        ({"load": 3.1}, "3.1 threads wanted its 2 cores"),
        ({"calibrated": None}, "the speed of gmlp could not be measured"),
        ({"trained_tokens_per_second": 640 / 1.3}, "speeds scattered (gmlp by 30%)"),
        ({"trained_tokens_per_second": 640 * 1.3}, "speeds scattered (gmlp by 43%)"),
        ({"trained_tokens_per_second": 640 / 1.2}, None),
        ({"steps": 49, "tokens": 3136}, "fewer than 50 steps were made (gmlp 49)"),
        ({"steps": 50, "tokens": 3200}, None),
    ],
)
def test_seconds_that_were_not_shared_evenly_are_doubted(
    change: dict[str, Any], said: str | None
) -> None:
    rows: Any = [row(**change), row("attention", letters=["b"])]
    doubts = verdict(rows, "loss", in_seconds=True, cores=2)["doubts"]
    assert doubts == [] if said is None else said in "; ".join(doubts)


def test_the_best_are_all_that_share_a_letter_with_the_first() -> None:
    tiers = [["a"], ["a", "b"], ["b"], ["a"]]
    rows: Any = [row(name, letters=t) for name, t in zip("wxyz", tiers, strict=True)]
    assert verdict(rows, "loss", in_seconds=True, cores=2)["best"] == ["w", "x", "z"]
    # equal steps are fair on any machine
    found = verdict(
        [row(load=9.0, calibrated=None, trained_tokens_per_second=1.0)],
        "loss", in_seconds=False, cores=2,
    )  # fmt: skip
    assert (found["best"], found["doubts"], found["useful"]) == (["gmlp"], [], True)
    assert (found["smallest"], found["ended"]) == (None, None)


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


class Batches:
    """A text of 32 held-out windows, as far as an estimate reads it."""

    does, length = TASKS["lm"], 64

    def validation_batches(self, size: int, limit: int | None = None) -> Any:
        count = min(32, limit or 32)
        return (SimpleNamespace(inputs=range(min(size, count - n))) for n in range(0, count, size))


HELD_OUT: Any = Batches()
SPEED: Any = {
    "rounds": [0.1, 0.05, 9.0],
    "seconds": 0.1,
    "steps": 10,
    "state_bytes": 4,
    "decode_ms": {"4": 2.0, "8": 5.0},
}


@pytest.mark.parametrize(
    ("member", "training", "speed", "seconds"),
    [
        # 10 steps of the median round; a row is read in 0.4 / 16 of a step: 32 in an evaluation, 32
        # by position; three quarters of a window are written, a token in 2 ms
        ("gmlp", {}, {}, 1.0 + 64 * 0.0025 + 0.096),
        ("gmlp", {"evaluate_every": 4}, {}, 1.0 + 128 * 0.0025 + 0.096),
        ("gmlp", {"evaluate_sequences": 8}, {}, 1.0 + 40 * 0.0025 + 0.096),
        ("gmlp", {"batch": 4}, {}, 1.0 + 64 * 0.01 + 0.096),
        # every token reads a quarter of a window again, which takes longer than after 4 tokens
        ("gmlp", {"batch": 1}, {"state_bytes": None}, 1.0 + 64 * 0.04 + 48 * 0.01),
        ("gmlp", {}, {"state_bytes": None}, 1.0 + 64 * 0.0025 + 0.096),
        # 65,536 tokens are stored, read in windows of 64 that overlap by half
        ("knn-lm", {}, {}, 1.0 + (64 + 2048) * 0.0025 + 0.096),
    ],
)
def test_an_estimate_counts_steps_evaluations_what_is_read_and_written(
    member: str, training: dict[str, Any], speed: dict[str, Any], seconds: float
) -> None:
    config = CompareConfig(members=(member,), training=TrainingConfig(steps=10, **training))
    ready = [Candidate(member, None, configure(member, "lm", max_length=64), 1)]
    found = Estimate(config, ready, HELD_OUT, {member: SPEED | speed})
    around = START + PAGE_SO_FAR + PAGE + PAGE_OF_MEMBER
    assert found.seconds == pytest.approx(around + seconds)
    assert found.left == found.seconds
    timed = Estimate(config, ready, HELD_OUT, {member: SPEED | speed}, {512: 3.0, 1024: 7.0})
    assert timed.left == pytest.approx(found.seconds + 10.0)


def test_the_parts_of_the_whole_follow_one_another() -> None:
    members = ("gmlp", "attention")
    config = CompareConfig(members=members, seeds=2, training=TrainingConfig(steps=10))
    ready = [Candidate(m, preset(m), configure(m, "lm", max_length=8), 1) for m in members]
    estimate = Estimate(config, ready, HELD_OUT, dict.fromkeys(members, SPEED))
    assert estimate.trainings == 4
    end, after = 0.0, estimate.seconds
    for number, (candidate, seed) in enumerate(itertools.product(ready, (0, 1)), start=1):
        planned = job(config, candidate, seed, 0.001)
        part = estimate.part(planned)
        assert (part.number, part.of) == (number, 4)
        assert part.begin == pytest.approx(end)
        assert end < part.end < 1
        assert part.after < after
        end, after = part.end, part.after
        estimate.over(planned, seconds=estimate._each[candidate.member])


def of_two_seeds(layers: dict[int, float]) -> tuple[Estimate, list[Any]]:
    """An estimate of two trainings that could not be timed, and the trainings."""
    config = CompareConfig(members=("gmlp",), seeds=2, training=TrainingConfig(steps=10))
    ready = [Candidate("gmlp", preset("gmlp"), configure("gmlp", "lm", max_length=8), 1)]
    estimate = Estimate(config, ready, HELD_OUT, {}, layers)
    return estimate, [job(config, ready[0], seed, 0.001) for seed in (0, 1)]


def test_what_is_left_follows_what_it_really_took() -> None:
    estimate, (first, second) = of_two_seeds({})
    expected = estimate._each["gmlp"]
    estimate.over(first, seconds=3 * expected)
    rest = estimate.seconds - 2 * expected
    assert estimate.part(second).after == pytest.approx(3 * rest)
    assert estimate.left == pytest.approx(3 * (rest + expected))
    # each kind of work by its own
    estimate, (first, _) = of_two_seeds({512: 3.0, 1024: 7.0})
    trainings = estimate.left - 10.0
    estimate.timed(512, 6.0)
    assert estimate.left == pytest.approx(trainings + 14.0)
    estimate.over(first)  # in an earlier session: it says nothing of the speed of this one
    assert estimate.left == pytest.approx(trainings - expected + 14.0)


def test_what_was_said_of_the_time_is_corrected_where_it_was_far_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr("everyformer.lab.compare.estimate.time", clock)
    estimate, _ = of_two_seeds({512: 30.0, 1024: 70.0})
    whole = estimate.announce()
    now[0] += 33.0
    estimate.timed(512, 33.0)  # 1.1 of what was expected
    assert estimate.news() is None
    estimate, _ = of_two_seeds({512: 30.0, 1024: 70.0})
    estimate.announce()
    now[0] += 60.0
    estimate.timed(512, 60.0)
    assert estimate.news() == pytest.approx(whole - 100.0 + 140.0)
    assert estimate.news() is None


class Layers(list[tuple[int, str]]):
    """Lengths and devices at which layers were timed, in order, by a clock of their own."""

    def __init__(self) -> None:
        self.now, self.took = 0.0, 20.0
        self.seconds: Callable[[str, int], float] = lambda name, length: 0.5
        """of a call"""

    def __call__(self, names: list[str], length: int, **given: Any) -> list[Point]:
        self.append((length, given["device"]))
        points = [Point(name, length, seconds=self.seconds(name, length)) for name in names]
        self.now += self.took or 5 + 12 * sum(point.seconds or 0.0 for point in points)
        return points


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Layers:
    measured = Layers()
    monkeypatch.setattr(timing, "bench_together", measured)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: measured.now))
    return measured


def test_layers_are_foretold_by_what_a_short_length_took(tree: Path, layers: Layers) -> None:
    config = CompareConfig(members=("linear",), lengths=(4096, 2048), model={"width": 512})
    times = timing.LayerTimes(config, ["linear"], tree)
    times.pilot()
    # 12 calls of each took 12 s, and 8 s went by beside them; half of a call at 1,024 tokens and
    # width 512 mixes, which is quadratic in attention
    assert times.expected() == pytest.approx(
        {
            2048: 8 + 12 * (0.5 * 2 + 0.5 * (2 + 4) / 2),
            4096: 8 + 12 * (0.5 * 4 + 0.5 * (4 + 16) / 2),
        }
    )
    assert [*times.measure()] == [(4096, 20.0), (2048, 20.0)]
    assert [length for length, _ in layers] == [1024, 4096, 2048]
    assert (times.expected(), {p.length for p in times.points}) == ({}, {4096, 2048})


def test_layers_are_measured_where_members_are_trained(
    tree: Path, layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "pick_device", torch.device)  # whether it is there or not
    training = TrainingConfig(budget_tokens=1, device="cuda")
    config = CompareConfig(members=("linear",), lengths=(256,), training=training)
    assert [length for length, _ in timing.LayerTimes(config, ["linear"], tree).measure()] == [256]
    assert layers == [(256, "cuda")]


def test_layers_are_foretold_by_how_they_grew_where_a_row_claims_less(
    tree: Path, layers: Layers
) -> None:
    """Of a mixer of one's own a claim may be wrong: 10 minutes were said that became 16."""
    layers.took = 0.0
    layers.seconds = lambda name, length: 1e-6 * length ** (2 if name == "linear" else 1)
    config = CompareConfig(members=("linear",), lengths=(256, 512, 1024, 2048))
    times = timing.LayerTimes(config, ["linear"], tree)
    times.pilot()
    said = times.expected()
    assert [*said] == [1024, 2048]
    took = dict(times.measure())
    assert took == pytest.approx(said, rel=0.02)


def test_a_page_is_written_after_every_member(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what an earlier session finished is not foretold in the next."""
    pages: list[tuple[list[str], bool]] = []
    left: list[float] = []
    announce = Estimate.announce

    def drawn(results: Any, folder: Path, complete: bool) -> None:
        pages.append((results["waiting"], complete))

    monkeypatch.setattr(Estimate, "announce", lambda one: left.append(announce(one)) or left[-1])
    monkeypatch.setattr("everyformer.lab.report.comparison.write_report", drawn)
    compare("gmlp", "attention", "aft-simple", "--steps", "1")
    assert pages == [
        (["attention", "aft-simple"], False), (["aft-simple"], False), ([], False), ([], True),
    ]  # fmt: skip
    assert left[0] > 3 * START
    left.clear()
    compare("--resume", small=False)
    assert left[0] == pytest.approx(PAGE + 3 * PAGE_OF_MEMBER)


def test_layers_are_timed_once(
    compare: Compare, layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compare("gmlp", "--steps", "1", "--lengths", "8", "16").results["rows"]
    assert [length for length, _ in layers] == [8, 16]
    layers.clear()

    def stopped(*given: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    with monkeypatch.context() as patch:
        patch.setattr("everyformer.lab.compare.compare.calibrate", stopped)
        again = compare("--resume", small=False)
    # a stop before anything is looked at again leaves the table
    assert (again.code, again.results["rows"]) == (143, before)
    assert len(before) == 1
    done = compare("--resume", "--lengths", "8", "32", small=False)
    assert [length for length, _ in layers] == [32]
    assert {(p["member"], p["length"]) for p in done.results["bench"]} == {
        (member, length) for member in ("attention", "gmlp") for length in (8, 32)
    }


def test_the_next_commands_name_paths_that_are_there(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = "train gmlp longer, for 100 steps"
    done = compare("gmlp", "--steps", "2")
    # no better than counting tokens: not recommended
    assert [words for words, _ in done.results["next"]] == [longer]
    monkeypatch.setattr("everyformer.core.tasks.constant", lambda *given: None)
    done = compare("--resume", small=False)
    commands = dict(done.results["next"])
    use = "use gmlp, first in bits per byte after 2 steps, though not settled"
    assert list(commands) == [use, "look into it", longer]
    assert all(command in done.out for command in commands.values())
    words = commands[longer].split()
    assert words[-2:] == ["--steps", "100"]
    assert main(words[1:]) == 0
    again = compare("--resume", small=False)
    assert again.runs("gmlp")[0]["steps"] == 2
    assert max(line["step"] for line in again.runs("gmlp")[0]["evaluations"]) == 2
