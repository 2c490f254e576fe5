"""What a launcher is given, in which order, and what becomes of it: by one that runs them here."""

import os
import signal
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from small_comparisons import Compared

from everyformer.core.tasks import TASKS
from everyformer.lab.compare import compare as comparing
from everyformer.lab.compare import worker
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.estimate import Estimate
from everyformer.lab.compare.files import read_result
from everyformer.lab.compare.launchers import Ended, Launcher, Local, Task
from everyformer.lab.compare.plan import Candidate, job
from everyformer.lab.compare.verdict import verdict
from everyformer.models.build import configure
from everyformer.system.signals import GracefulStop
from everyformer.training.config import TrainingConfig
from everyformer.training.spec import preset

Compare = Callable[..., Compared]
RAY = ("--launcher", "ray")


class Beside(Launcher):
    """Trainings of this process that are all begun before the last of them is run."""

    at_once = 2

    def __init__(self, ends: dict[str, int] | None = None) -> None:
        self.waiting: list[Task] = []
        self.waves: list[list[str]] = [[]]
        self.ends = ends or {}
        """exit codes of those that leave no result"""

    @property
    def begun(self) -> list[str]:
        return [*chain(*self.waves)]

    @property
    def full(self) -> bool:
        return False

    def start(self, task: Task) -> None:
        self.waiting.append(task)
        self.waves[-1].append(task.folder.name)

    def ended(self, stop: GracefulStop) -> Ended:
        task = self.waiting.pop()
        self.waves += [[]] if self.waves[-1] else []
        code = self.ends.get(task.folder.name, 0) or worker.main(task.folder, *task.words)
        result = read_result(task.folder)
        # the file is the comparison's to write, as where the disk is slow to show it
        (task.folder / "result.json").unlink(missing_ok=True)
        return Ended(task.planned, code, result, 1.0)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    made = Beside()
    monkeypatch.setattr(comparing, "_launcher", lambda *given: made)
    return made


def test_all_are_begun_at_once_and_come_to_the_same(
    compare: Compare, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("gmlp", "attention", "--seeds", "2", "--steps", "2")
    there = compare(*words)
    names = [f"{member}-seed{n}" for member in ("gmlp", "attention") for n in (0, 1)]
    assert beside.waves == [names, []]
    assert all(f"[{n} of 4] {name}: training" in there.err for n, name in enumerate(names, 1))
    assert all((there.folder / "runs" / name / "result.json").exists() for name in names)
    monkeypatch.setattr(comparing, "_launcher", lambda *given: Local())
    again = compare("--resume", small=False)
    assert again.results["rows"] == there.results["rows"]
    # without a budget in seconds the launcher may change
    monkeypatch.setattr(comparing, "_launcher", lambda *given: beside)
    assert compare("--resume", *RAY, small=False).code == 0


def test_seeds_follow_the_rates_of_their_member(compare: Compare, beside: Beside) -> None:
    # the last is far too high
    rates = ("--lr-grid", "0.001", "0.01", "10", "--seeds", "2", "--steps", "2")
    done = compare("gmlp", "attention", *rates)
    assert done.code == 0, done.err
    first, *others = [wave for wave in beside.waves if wave]
    ends = ("seed0", "seed0-lr0.01", "seed0-lr10")
    assert first == [f"{member}-{end}" for member in ("gmlp", "attention") for end in ends]
    # those of each member as soon as its own rates are known
    assert [[name.partition("-seed")[0] for name in wave] for wave in others] == [
        ["attention"], ["gmlp"]
    ]  # fmt: skip
    for [name] in others:
        member, _, end = name.partition("-")
        tried = {one: read_result(done.folder / "runs" / f"{member}-{one}") for one in ends}
        losses = {
            one: result["evaluation"]["loss"]
            for one, result in tried.items()
            if result is not None and result["status"] == "done"
        }
        assert len(losses) > 1
        assert end == min(losses, key=losses.__getitem__).replace("seed0", "seed1")


@pytest.mark.full("comparisons, seconds")
def test_further_seeds_go_the_same_way(compare: Compare, beside: Beside) -> None:
    done = compare("gmlp", "attention", "--until-settled", "6", "--steps", "1")
    first, *others = [wave for wave in beside.waves if wave]
    assert len(first) == 6
    seeds = max(done.row(member)["seeds"] for member in ("gmlp", "attention"))
    assert len([*chain(*others)]) == sum(len(done.runs(m)) for m in ("gmlp", "attention")) - 6
    assert (seeds > 3) is bool(others)


def test_a_failed_one_is_one_row_and_run_once_in_a_sitting(
    compare: Compare, beside: Beside
) -> None:
    beside.ends["gmlp-seed0"] = -signal.SIGKILL
    done = compare("gmlp", "attention", "--steps", "1")
    assert done.code == 1
    assert done.row("gmlp")["error"] == "the process ended with signal 9 (out of memory?)"
    assert done.err.count("gmlp: failed") == 1
    assert beside.begun == ["gmlp-seed0", "attention-seed0"]
    beside.ends.clear()
    assert compare("--resume", small=False).code == 0
    assert beside.begun[2:] == ["gmlp-seed0"]


def test_a_stop_waits_for_what_runs_and_begins_nothing(
    compare: Compare, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Beside.ended

    def stopped(launcher: Beside, stop: GracefulStop) -> Ended:
        if len(launcher.waiting) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            return Ended(launcher.waiting.pop().planned, 143, None, 1.0)
        return run(launcher, stop)

    monkeypatch.setattr(Beside, "ended", stopped)
    done = compare("gmlp", "attention", "--lr-grid", "0.1", "0.2", "--steps", "1")
    assert done.code == 143
    assert beside.waves[0] == [
        f"{m}-seed0-lr{r}" for m in ("gmlp", "attention") for r in (0.1, 0.2)
    ]
    assert beside.begun == beside.waves[0]
    assert beside.waiting == []
    [row] = done.results["rows"]
    assert row["member"] == "attention"
    assert done.results["waiting"] == ["gmlp"]


def test_the_time_left_is_shared_by_those_that_run_at_once() -> None:
    """And a busy machine is no reason to doubt these."""
    config = CompareConfig(members=("gmlp",), seeds=4, training=TrainingConfig(steps=10))
    ready = [Candidate("gmlp", preset("gmlp"), configure("gmlp", "lm", max_length=8), 1)]
    data: Any = SimpleNamespace(does=TASKS["lm"], length=8, validation_batches=lambda *sizes: ())
    alone, four = (Estimate(config, ready, data, {}, at_once=n) for n in (1, 4))
    page = alone._page
    assert four.left - page == pytest.approx((alone.left - page) / 4)
    planned = [job(config, ready[0], seed, 0.001) for seed in range(4)]
    assert [four.part(one, beside=n).number for n, one in enumerate(planned)] == [1, 2, 3, 4]
    # as long as was expected: the pace stays, one less is left
    four.over(planned[0], four._each["gmlp"])
    assert four.left - page == pytest.approx(3 / 4 * alone._each["gmlp"])
    row: Any = {"member": "gmlp", "letters": ["a"], "steps": 100, "tokens": 100, "load": 9.0,
                "trained_tokens_per_second": 1.0, "calibrated": {"rounds": [0.1, 0.1]},
                "beats_baseline": None, "values": [1.0], "quality": 1.0, "same_as": [],
                "seeds": 1, "interval": None}  # fmt: skip
    for launcher, doubts in (("local", 2), ("ray", 0)):
        design = CompareConfig(members=("gmlp",), launcher=launcher)  # type: ignore[arg-type]
        found = verdict([row], "loss", in_seconds=True, cores=2, design=design)
        assert len(found["doubts"]) == doubts


def test_a_launcher_may_not_change_under_a_budget_in_seconds(
    compare: Compare, beside: Beside
) -> None:
    assert compare("gmlp", "--budget-seconds", "0.02").code == 0
    told = compare("--resume", *RAY, small=False)
    assert told.code == 2
    assert "started with other options (launcher: 'local' -> 'ray')" in told.err
