"""A run that was stopped or killed and resumed writes what an undisturbed one writes."""

import dataclasses
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from training_stand_ins import TinyData, TinyModel, tiny_training, train_tiny

from everyformer.core.errors import CheckpointError, UnsavedError
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.training import RunDirectory, train
from everyformer.training.checkpoint import checkpoints, read_state
from everyformer.training.logging import read_metrics

HARD: dict[str, Any] = {
    "model": {"dropout": 0.2, "extra_loss": True},
    "ema": 0.9,
    "accumulate": 2,
    "steps": 20,
}
"""dropout, averaging and slices: all that a resumed run could get wrong"""
CLOCKS = ("seconds", "tokens_per_second")


def curves(out: Path) -> list[dict[str, Any]]:
    rows = read_metrics(out / "metrics.jsonl")
    return [{name: row[name] for name in row if name not in CLOCKS} for row in rows]


def assert_same_run(found: Path, expected: Path) -> None:
    assert curves(found) == curves(expected)
    ours, theirs = checkpoints(found / "checkpoints"), checkpoints(expected / "checkpoints")
    assert ours[-1].name == theirs[-1].name
    states = [dataclasses.replace(read_state(path[-1]), seconds=0.0) for path in (ours, theirs)]
    assert states[0] == states[1]
    for name in ("model", "optimiser", "ema"):
        file = f"{name}.safetensors"
        mine, other = load_file(ours[-1] / file), load_file(theirs[-1] / file)
        assert mine.keys() == other.keys()
        assert all((mine[key] == other[key]).all() for key in other)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train_tiny(out, **HARD)
    return out


class Disturbed(TinyData):
    """Does something when the batch of a step is asked for: the same moment in every test."""

    def __init__(self, moments: dict[int, Callable[[], Any]]) -> None:
        super().__init__()
        object.__setattr__(self, "moments", moments)

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        self.moments.get(step, int)()  # type: ignore[attr-defined]
        return super().train_batch(step, size, seed, portion)


class SignalledData(Disturbed):
    """Signals this process at some steps, or whenever it evaluates."""

    def __init__(self, moments: dict[int, int], evaluation: int | None = None) -> None:
        super().__init__({at: partial(signal.raise_signal, n) for at, n in moments.items()})
        object.__setattr__(self, "evaluation", evaluation)

    def validation_batches(self, size: int, limit: int | None = None) -> Any:
        for batch in super().validation_batches(size, limit):
            yield batch
            if self.evaluation is not None:  # type: ignore[attr-defined]
                signal.raise_signal(self.evaluation)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [(0, signal.SIGINT, 130), (3, signal.SIGTERM, 143), (7, signal.SIGINT, 130),
     (19, signal.SIGTERM, 143)],
)  # fmt: skip
def test_a_stop_finishes_the_step_and_resumes_exactly(moment, number, code, tmp_path, undisturbed):
    out = tmp_path / "run"
    stopped = train_tiny(out, data=SignalledData({moment: number}), **HARD)
    assert stopped.interrupted
    assert stopped.exit_code == code
    assert stopped.steps == moment + 1
    assert stopped.evaluation is None
    resumed = train_tiny(out, resume=True, **HARD)
    assert not resumed.interrupted
    assert resumed.exit_code == 0
    assert_same_run(out, undisturbed)


def test_a_second_interrupt_stops_at_once(tmp_path: Path, undisturbed: Path) -> None:
    def twice() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    # a process started in the background by a shell ignores the signal: whatever was is put back
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path / "run", data=Disturbed({7: twice}), **HARD)
    assert signal.getsignal(signal.SIGINT) == before
    train_tiny(tmp_path / "run", resume=True, **HARD)
    assert_same_run(tmp_path / "run", undisturbed)


def train_in_child(out: Path, resume: bool, options: dict[str, Any]) -> None:
    train_tiny(out, resume=resume, **options)


@pytest.mark.full("seconds each", parts=3)
def test_kills_at_any_moment_leave_a_run_that_resumes_exactly(children, tmp_path):
    options = {**HARD, "steps": 18, "checkpoint_every": 1}
    train_tiny(tmp_path / "undisturbed", **options)
    out, kills = tmp_path / "run", 0
    for attempt in range(100):
        resume = out.exists()
        seen = len(read_metrics(out / "metrics.jsonl"))
        child = children.Process(target=train_in_child, args=(out, resume, options))
        child.start()
        while child.is_alive() and len(read_metrics(out / "metrics.jsonl")) < seen + 3:
            time.sleep(0.001)
        child.join(0.0037 * (attempt % 11))
        assert child.pid is not None
        child.kill()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 3
    assert child.exitcode == 0
    assert_same_run(out, tmp_path / "undisturbed")


def test_a_stop_while_evaluating_evaluates_again_and_damage_costs_only_its_steps(
    tmp_path, undisturbed
):
    out = tmp_path / "run"
    # killed before anything was saved, it starts again
    out.mkdir()
    (out / ".lock").touch()
    (out / ".writing-config.json").write_text("{")
    stopped = train_tiny(out, data=SignalledData({}, signal.SIGTERM), resume=True, **HARD)
    assert (stopped.interrupted, stopped.steps) == (True, 4)
    train_tiny(out, resume=True, **HARD)
    assert_same_run(out, undisturbed)
    last = checkpoints(out / "checkpoints")[-1] / "model.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=f"{last.parent.name} is skipped"):
        train_tiny(out, resume=True, **HARD)
    assert_same_run(out, undisturbed)
    path = out / "metrics.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:5]))
    with pytest.warns(UserWarning, match=r"metrics.jsonl ends at step 4, .* as far as step 20"):
        train_tiny(out, resume=True, **HARD)


@pytest.mark.parametrize("budget", ["budget_tokens", "budget_flops"])
def test_other_budgets_resume_exactly(tmp_path: Path, budget: str) -> None:
    amount = {"budget_tokens": 42 * 14.5, "budget_flops": 38304 * 14.5}[budget]
    options: dict[str, Any] = {budget: amount, "ema": 0.9}
    whole = train_tiny(tmp_path / "whole", **options)
    assert whole.steps == 15
    train_tiny(tmp_path / "run", data=SignalledData({6: signal.SIGTERM}), **options)
    train_tiny(tmp_path / "run", resume=True, **options)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.full("seconds each", parts=3)
def test_spent_seconds_are_kept(tmp_path: Path) -> None:
    class Slow(SignalledData):
        def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
            time.sleep(0.05)
            return super().train_batch(step, size, seed, portion)

        def validation_batches(self, size: int, limit: int | None = None) -> Any:
            time.sleep(0.3)
            return super().validation_batches(size, limit)

    options: dict[str, Any] = {"budget_seconds": 0.5, "evaluate_every": 2}
    stopped = train_tiny(tmp_path / "run", data=Slow({3: signal.SIGINT}), **options)
    resumed = train_tiny(tmp_path / "run", resume=True, data=Slow({}), **options)
    assert stopped.seconds < 0.5 <= resumed.seconds < 0.8
    assert resumed.steps <= 10


def test_a_finished_run_can_go_on_for_longer(tmp_path: Path, undisturbed: Path) -> None:
    options = {**HARD, "schedule": "constant", "warmup": 0.0}
    train_tiny(tmp_path / "long", **{**options, "evaluate_every": 20})
    short = {**options, "evaluate_every": 20, "steps": 9}
    train_tiny(tmp_path / "run", **short)
    train_tiny(tmp_path / "run", resume=True, **{**options, "evaluate_every": 20})
    rows = [row for row in curves(tmp_path / "run") if "loss" in row]
    assert rows == [row for row in curves(tmp_path / "long") if "loss" in row]


def test_another_model_or_other_data_is_refused(tmp_path: Path) -> None:
    train_tiny(tmp_path / "run")
    with pytest.raises(CheckpointError, match="width: 8 -> 6"):
        train_tiny(tmp_path / "run", resume=True, model={"width": 6})
    with pytest.raises(CheckpointError, match="fingerprint"):
        train_tiny(tmp_path / "run", resume=True, data=TinyData(fingerprint="beef"))


def test_changed_options_are_told_and_what_is_over_stays_as_it_was_trained(tmp_path, capfd):
    out = tmp_path / "run"
    first = train_tiny(out)

    def goes_on(**options: Any) -> tuple[Any, str]:
        with RunDirectory(out, resume=True) as run:
            result = train(TinyModel(), TinyData(), tiny_training(**options), run, resume=True)
        return result, capfd.readouterr().err

    before = (out / "config.json").read_text()
    for options, said in (({}, ""), ({"lr": 0.5, "steps": 4}, ", and what is new is not kept: ")):
        result, told = goes_on(**options)
        assert (result.steps, result.evaluation) == (12, first.evaluation)
        assert f"trained for 12 steps, so nothing is left to train{said}" in told
        assert ("lr: 0.001 -> 0.5" in told) == bool(said)
        assert "training for" not in told
        assert (out / "config.json").read_text() == before
    told = goes_on(lr=0.5, steps=14)[1]
    for words in ("steps: 12 -> 14", "lr: 0.001 -> 0.5", "going on from step 12"):
        assert words in told


# the thread of tensorboard's writer ends with a refusal of its own
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("harm", "log_every"),
    [("removed", 1), ("removed", 1000), ("renamed", 1), ("made again", 1000),
     ("without its config", 1)],
)  # fmt: skip
def test_a_run_whose_folder_goes_says_so(tmp_path, harm, log_every, monkeypatch) -> None:
    monkeypatch.undo()  # with tensorboard
    out = tmp_path / "run"

    def change() -> None:
        if harm == "without its config":
            (out / "config.json").unlink()
            return
        out.rename(tmp_path / "elsewhere")
        if harm == "removed":
            shutil.rmtree(tmp_path / "elsewhere")
        if harm == "made again":
            out.mkdir()

    with pytest.raises(UnsavedError, match="run was removed or renamed") as caught:
        train_tiny(out, data=Disturbed({5: change}), log_every=log_every)
    assert caught.value.exit_code == 1
    assert not (out / "checkpoints" / "step-00000012").exists()
    assert out.exists() is (harm in ("made again", "without its config"))
    if harm == "renamed":
        train_tiny(tmp_path / "elsewhere", resume=True)
