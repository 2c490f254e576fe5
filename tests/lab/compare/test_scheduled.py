"""Trainings of a comparison as jobs of their own come to what one comparison comes to."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_comparisons import Compared

from everyformer.lab.compare import scheduled, worker
from everyformer.lab.compare.folder import COMPARISONS
from everyformer.system.signals import GracefulStop

Compare = Callable[..., Compared]
PLAN = ("gmlp", "attention", "--seeds", "2", "--steps", "2")
ON = ("--resume", "--only")


@pytest.fixture
def trained(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs that were run, by their folders' names; they run in this process."""

    def here(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        launched.append(place.name)
        return worker.main(place, *words)

    monkeypatch.setattr(scheduled, "launch", here)
    return launched


@pytest.mark.full("a comparison job by job, seconds")
def test_jobs_in_any_order_come_to_the_comparison(compare: Compare, trained: list[str]) -> None:
    first = compare(*PLAN, "--only", "attention", "--seed", "1")
    assert first.code == 0, first.err
    assert trained == ["attention-seed1"]
    assert "attention with seed 1: validation loss" in first.err
    assert not (first.folder / "results.json").exists()
    # of one that is there, the words of the plan are not needed again, nor done again
    assert compare(*ON, "attention", "--seed", "1", small=False).code == 0
    assert compare(*ON, "gmlp", small=False).code == 0
    assert trained == ["attention-seed1", "gmlp-seed0"]
    some = compare("--collect", small=False)
    assert some.code == 1
    assert "2 trainings of 4 missing: gmlp-seed1 and attention-seed0; --resume --only" in some.err
    assert [len(some.runs(member)) for member in ("gmlp", "attention")] == [1, 1]
    for words in (("gmlp", "--seed", "1"), ("attention",)):
        assert compare(*ON, *words, small=False).code == 0
    whole, here = compare("--collect", small=False), compare(*PLAN, out="here")
    assert (whole.code, here.code) == (0, 0)
    for member in ("gmlp", "attention"):
        for name in ("quality", "interval", "values", "letters", "steps", "tokens"):
            assert whole.row(member)[name] == here.row(member)[name]
    assert whole.results["waiting"] == []
    command = COMPARISONS.first_command(whole.folder)
    assert command is not None
    assert "gmlp attention" in command
    assert "--seeds 2" in command
    assert "--only" not in command
    assert "--seed " not in command


def test_seeds_begin_where_those_of_the_folder_do(compare: Compare, trained: list[str]) -> None:
    begun = compare("gmlp", "--steps", "1", "--seed", "5")
    assert begun.code == 0
    told = compare(*ON, "gmlp", "--seed", "0", small=False)
    assert told.code == 2
    assert "has no training of gmlp with seed 0: its members are gmlp, its seeds 5" in told.err
    assert compare("gmlp", "--steps", "1", "--only", "gmlp", "--seed", "5").code == 0
    assert trained == ["gmlp-seed5"]


def test_a_failure_is_a_row_and_tried_again(
    compare: Compare, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(scheduled, "launch", lambda *given: -signal.SIGKILL)
        told = compare("gmlp", "--steps", "1", "--only", "gmlp")
    assert told.code == 1
    assert "gmlp: failed: the process ended with signal 9" in told.err
    collected = compare("--collect", small=False)
    assert collected.code == 1
    assert collected.row("gmlp")["status"] == "failed"
    assert compare(*ON, "gmlp", small=False).code == 0
    assert compare("--collect", small=False).code == 0


def test_one_that_was_stopped_is_missing(
    compare: Compare, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        stop.received = signal.SIGTERM
        return 143

    monkeypatch.setattr(scheduled, "launch", stopped)
    told = compare("gmlp", "--steps", "1", "--only", "gmlp")
    assert told.code == 128 + signal.SIGTERM
    assert "stopped; the same words continue it" in told.err
    told = compare("--collect", small=False)
    assert told.code == 2
    assert "no training of the comparison in made has ended" in told.err
    # a job of another plan is refused
    told = compare("gmlp", "--steps", "1", "--batch", "2", "--only", "gmlp")
    assert told.code == 2
    assert "was started with other options (training.batch: 4 -> 2)" in told.err


WRONG: list[tuple[tuple[str, ...], str]] = [
    (("--only", "bert"), "has no training of bert with seed 0: its members are gmlp, attention"),
    (("--only", "gmlp", "--seed", "2"), "no training of gmlp with seed 2"),
    (("--only", "gmlp", "--budget-seconds", "3"), "a budget in seconds becomes steps only where"),
    (("--only", "gmlp", "--lr-grid", "0.1", "0.2"), "--lr-grid chooses a rate for the later seeds"),
    (("--only", "gmlp", "--overwrite"), "other jobs share the folder: leave out --overwrite"),
    (("--collect", "--only", "gmlp"), "--collect trains nothing: leave out --only"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_what_is_no_job_of_the_comparison_is_refused(
    words: tuple[str, ...], said: str, compare: Compare, trained: list[str]
) -> None:
    budget: Any = () if "--budget-seconds" in words else ("--steps", "2")
    if "--collect" in words:
        assert compare("gmlp", *budget).code == 0
    told = compare("gmlp", "attention", "--seeds", "2", *budget, *words)
    assert told.code == 2
    assert said in told.err
    if "--collect" not in words:
        assert not (told.folder / "runs").exists()
