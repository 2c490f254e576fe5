"""Runs at other places: what is there is whole, and any machine goes on with it as if it were here.

``memory://`` stands for an object store, which knows no folders and no renaming.
"""

import json
import os
import shutil
import warnings
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from split_stand_ins import LENGTH, check_weights, losses, options_of, stepped_model, trained
from training_stand_ins import (
    TinyData,
    TinyModel,
    tiny_text,
    tiny_training,
    train_tiny,
    two_processes,
)

import everyformer as ef
from everyformer.core.errors import CheckpointError, ConfigError, UnsavedError
from everyformer.training.checkpoint import TrainingState
from everyformer.training.logging import read_metrics
from everyformer.training.loop import train
from everyformer.training.parallel.world import World, join
from everyformer.training.remote import fetched
from everyformer.training.run import Records, RunDirectory
from everyformer.training.saved import load_model, save_model

PLACE = "memory://bucket/run"


pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Go to a machine that has nothing of the run."""

    def go(number: int = 1) -> Path:
        folder = tmp_path / f"machine{number}"
        monkeypatch.setenv("EVERYFORMER_CACHE", str(folder))
        return folder

    return go


def there(files: MemoryFileSystem) -> list[str]:
    return sorted(name.removeprefix("/bucket/run/") for name in files.find("/bucket/run"))


def steps(files: MemoryFileSystem) -> list[int]:
    states = (name for name in there(files) if name.endswith("/state.json"))
    return [int(name.split("/")[1].removeprefix("step-")) for name in states]


def curve(path: Path) -> list[Any]:
    rows = read_metrics(path / "metrics.jsonl")
    return [(row["step"], row.get("loss"), row.get("evaluation")) for row in rows]


def test_a_run_at_a_place_is_the_local_one_file_for_file(
    store: MemoryFileSystem, tmp_path: Path
) -> None:
    here, away = train_tiny(tmp_path / "run"), train_tiny(PLACE)  # type: ignore[arg-type]
    assert away.evaluation == here.evaluation
    local = sorted(
        path.relative_to(tmp_path / "run").as_posix()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )
    # curves of TensorBoard are called by the time
    assert len(there(store)) == len(local)
    for name in (name for name in local if not name.startswith("tensorboard")):
        assert name in there(store)
        if name.endswith(".safetensors"):
            assert store.cat_file(f"/bucket/run/{name}") == (tmp_path / "run" / name).read_bytes()
    assert curve(fetched(PLACE)) == curve(tmp_path / "run")


def test_the_state_of_a_checkpoint_is_sent_last_and_removed_first(
    store: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    for name in ("put_file", "rm"):
        plain = getattr(MemoryFileSystem, name)

        def logged(
            self: Any, *given: Any, name: str = name, plain: Any = plain, **more: Any
        ) -> Any:
            done.append((name, given[-1].removeprefix("/bucket/run/")))
            return plain(self, *given, **more)

        monkeypatch.setattr(MemoryFileSystem, name, logged)
    train_tiny(PLACE, steps=15, keep=2)  # type: ignore[arg-type]
    sent = [name for way, name in done if way == "put_file"]
    assert sent[0] == "config.json"
    for step in (3, 6, 9, 12, 15):
        own = [name for name in sent if name.startswith(f"checkpoints/step-{step:08d}/")]
        last = own.index(f"checkpoints/step-{step:08d}/state.json")
        assert not [name for name in own[last:] if not name.endswith("state.json")]
        assert last == len(set(own)) - 1 >= 2
    removed = [name for way, name in done if way == "rm" and "step-00000003" in name]
    assert removed == [f"checkpoints/step-00000003{end}" for end in ("/state.json", "")]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_is_kept_there_is_what_is_kept_here(
    keep: int, store: MemoryFileSystem, other_machine: Any, tmp_path: Path
) -> None:
    for number, count in enumerate((7, 14, 20)):
        other_machine(number)
        train_tiny(PLACE, resume=number > 0, steps=count, keep=keep)  # type: ignore[arg-type]
        train_tiny(tmp_path / "run", resume=number > 0, steps=count, keep=keep)
        local = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
        assert steps(store) == [int(path.name.removeprefix("step-")) for path in local]


def test_another_machine_goes_on_bit_for_bit(
    store: MemoryFileSystem, other_machine: Any, tmp_path: Path
) -> None:
    train_tiny(PLACE, steps=7)  # type: ignore[arg-type]
    other_machine()
    train_tiny(PLACE, resume=True, steps=12)  # type: ignore[arg-type]
    for count in (7, 12):
        train_tiny(tmp_path / "run", resume=count > 7, steps=count)
    assert curve(fetched(PLACE)) == curve(tmp_path / "run")
    name = "checkpoints/step-00000012/model.safetensors"
    assert store.cat_file(f"/bucket/run/{name}") == (tmp_path / "run" / name).read_bytes()


def test_on_the_machine_itself_the_place_is_the_truth_too(
    store: MemoryFileSystem, tmp_path: Path
) -> None:
    train_tiny(PLACE, steps=7)  # type: ignore[arg-type]
    # what was not sent is not there, whatever lies in the local folder
    store.rm("/bucket/run/checkpoints/step-00000007", recursive=True)
    with pytest.warns(UserWarning, match="step-00000007 is not at"):
        train_tiny(PLACE, resume=True, steps=9)  # type: ignore[arg-type]
    train_tiny(tmp_path / "run", steps=7)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    train_tiny(tmp_path / "run", resume=True, steps=9)
    name = "checkpoints/step-00000009/model.safetensors"
    assert store.cat_file(f"/bucket/run/{name}") == (tmp_path / "run" / name).read_bytes()
    # and a place that was emptied can be begun anew
    store.rm("/bucket/run", recursive=True)
    assert train_tiny(PLACE, steps=3).steps == 3  # type: ignore[arg-type]


def test_a_half_sent_checkpoint_is_passed_over_said_and_swept(
    store: MemoryFileSystem, other_machine: Any
) -> None:
    train_tiny(PLACE, steps=9)  # type: ignore[arg-type]
    store.rm("/bucket/run/checkpoints/step-00000009/state.json")
    other_machine()
    with pytest.warns(UserWarning, match=r"step-00000009 at memory://bucket/run is skipped: .*end"):
        fetched(PLACE, "resume")
    with pytest.warns(UserWarning, match="skipped"):
        train_tiny(PLACE, resume=True, steps=8)  # type: ignore[arg-type]
    assert steps(store)[-1] == 8
    assert not [name for name in there(store) if "step-00000009" in name]


@pytest.mark.parametrize("cut", range(1, 14, 2))
def test_a_run_that_is_cut_off_in_the_middle_of_sending_goes_on(
    cut: int, store: MemoryFileSystem, other_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sent = MemoryFileSystem.put_file, 0

    def failing(self: Any, *given: Any, **more: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent > cut:
            raise ConnectionError("the line is cut")
        return plain(self, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "put_file", failing)
        with pytest.raises(UnsavedError, match=r"cannot write into memory://bucket/run: the line"):
            train_tiny(PLACE, steps=9)  # type: ignore[arg-type]
    for step in steps(store):
        folder = f"/bucket/run/checkpoints/step-{step:08d}"
        listed = json.loads(store.cat_file(f"{folder}/state.json"))["files"]
        assert {f"{folder}/{name}" for name in listed} <= set(store.find(folder))
    other_machine()
    begun = store.exists("/bucket/run/config.json")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "checkpoint .* is skipped")
        result = train_tiny(PLACE, resume=begun, steps=9)  # type: ignore[arg-type]
    assert result.steps == 9
    assert steps(store)[-1] == 9


def library_run(out: str | Path, **more: Any) -> None:
    with RunDirectory(out) as run:
        config = options_of(4, ema=None, keep=3, checkpoint_every=1, **more)
        train(stepped_model("gpt"), tiny_text(LENGTH), config, run, show=False)


def test_only_the_best_checkpoint_is_fetched_to_load_a_model(
    other_machine: Any, tmp_path: Path
) -> None:
    # so fast that it gets worse
    library_run(PLACE, lr=3.0, clip=None)
    library_run(tmp_path / "run", lr=3.0, clip=None)
    machine = other_machine()
    found, expected = load_model(PLACE).state_dict(), load_model(tmp_path / "run").state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    best = json.loads((next(machine.rglob("state.json"))).read_text())["best"]["step"]
    assert best == 2
    assert [path.name for path in machine.rglob("step-*")] == [f"step-{best:08d}"]
    mean = load_model(PLACE, average=3).state_dict()
    expected = load_model(tmp_path / "run", average=3).state_dict()
    assert all(torch.equal(mean[name], expected[name]) for name in expected)


def test_what_was_fetched_is_not_fetched_again(
    store: MemoryFileSystem, other_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library_run(PLACE)
    machine, plain, got = other_machine(), MemoryFileSystem.get_file, []

    def counted(self: Any, name: str, *given: Any, **more: Any) -> Any:
        got.append(name)
        return plain(self, name, *given, **more)

    monkeypatch.setattr(MemoryFileSystem, "get_file", counted)
    load_model(PLACE)
    assert len(got) >= 5
    got.clear()
    load_model(PLACE)
    assert got == []
    # but what was changed here is
    next(machine.rglob("config.json")).write_text("{}")
    load_model(PLACE)
    assert got == ["/bucket/run/config.json"]
    got.clear()
    store.pipe_file("/bucket/run/environment.json", b"{}")
    load_model(PLACE)
    assert got == ["/bucket/run/environment.json"]


def test_a_folder_that_is_trained_into_is_read_as_it_is(store: MemoryFileSystem) -> None:
    with RunDirectory(PLACE) as run:
        config = tiny_training(steps=3)
        train(TinyModel(), TinyData(), config, run, show=False)
        (run.path / "metrics.jsonl").write_text("mine\n")
        assert fetched(PLACE, "resume") == run.path
        assert (run.path / "metrics.jsonl").read_text() == "mine\n"
        with pytest.raises(ConfigError, match=r"memory://bucket/run is in use"):
            RunDirectory(PLACE, resume=True)


def test_saved_models_go_there_whole_and_come_back(
    store: MemoryFileSystem, other_machine: Any
) -> None:
    from everyformer.data.tokenizers.plain import ByteTokenizer

    model = ef.create_model("gpt", vocabulary=257, width=8, layers=1, heads=2, max_length=8)
    save_model(model, PLACE, tokenizer=ByteTokenizer())
    assert there(store) == ["config.json", "model.safetensors", "tokenizer.json"]
    save_model(model, PLACE)
    assert there(store) == ["config.json", "model.safetensors"]
    other_machine()
    found = load_model(PLACE).state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    store.pipe_file("/bucket/other/notes.txt", b"mine")
    with pytest.raises(CheckpointError, match="not a saved model"):
        save_model(model, "memory://bucket/other")


def test_a_run_is_not_mixed_with_another(store: MemoryFileSystem, other_machine: Any) -> None:
    train_tiny(PLACE, steps=3)  # type: ignore[arg-type]
    other_machine()
    with pytest.raises(ConfigError, match=r"^memory://bucket/run is not empty: give --resume"):
        RunDirectory(PLACE)
    with RunDirectory(PLACE, overwrite=True) as run:
        assert there(store) == []
        train(TinyModel(), TinyData(), tiny_training(steps=2), run, show=False)
    assert steps(store) == [2]
    store.rm("/bucket/run/config.json")
    with pytest.raises(CheckpointError, match=r"^memory://bucket/run is not a run"):
        RunDirectory(PLACE, resume=True)


def test_a_diverged_evaluation_leaves_no_checkpoint_there(store: MemoryFileSystem) -> None:
    with RunDirectory(PLACE) as run:
        train(TinyModel(), TinyData(), tiny_training(steps=3), run, show=False)
        run.forget(run.checkpoints / "step-00000003")
    assert steps(store) == []
    assert not [name for name in there(store) if name.startswith("checkpoints")]


def test_what_was_written_in_the_background_is_sent_with_the_next_row(
    store: MemoryFileSystem,
) -> None:
    with RunDirectory(PLACE) as run:
        records = Records(run, World(torch.device("cpu")))
        records.open(TrainingState(), {})
        saver: Any = SimpleNamespace(busy=True)
        records._saver, records._unsent = saver, True
        state = run.checkpoints / "step-00000005" / "state.json"
        state.parent.mkdir(parents=True)
        state.write_text("{}")
        records.write({"step": 5})
        assert steps(store) == []
        saver.busy = False
        records.write({"step": 6})
        assert steps(store) == [5]
        records.close()


def test_what_comes_after_the_last_checkpoint_is_sent_however_it_ends(
    store: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory(PLACE) as run:
        train(TinyModel(), TinyData(), tiny_training(steps=3), run, show=False)
        (run.path / "predictions.csv").write_text("fine")
    assert store.cat_file("/bucket/run/predictions.csv") == b"fine"

    def go_wrong(text: str) -> None:
        with RunDirectory(PLACE, resume=True) as run:
            run.write_config({"model": None})
            (run.path / "predictions.csv").write_text(text)
            raise KeyError("a fault")

    with pytest.raises(KeyError, match="a fault"):
        go_wrong("so far")
    assert store.cat_file("/bucket/run/predictions.csv") == b"so far"
    monkeypatch.setattr(MemoryFileSystem, "put_file", lambda *_: 1 / 0)
    with pytest.raises(KeyError, match="a fault"):
        go_wrong("lost")


def split_away(place: str, cache: str, count: int) -> None:
    os.environ["EVERYFORMER_CACHE"] = cache
    with join("cpu"), RunDirectory(place, resume="auto") as run:
        config = options_of(count, parallel="fsdp", keep=2)
        data = tiny_text(LENGTH, tokens=403, held_out=44)
        train(stepped_model("gpt"), data, config, run, resume=run.resumes, show=False)


@pytest.mark.full("a quarter of a minute", parts=3)
def test_split_weights_are_sent_and_go_on_elsewhere(
    children: ForkServerContext, tmp_path: Path, without_tensorboard: None
) -> None:
    place = f"file://{tmp_path}/place/run"
    for number, count in enumerate((3, 6)):
        two_processes(children, split_away, place, str(tmp_path / f"machine{number}"), count)
        states = (tmp_path / "place" / "run" / "checkpoints").glob("*/state.json")
        assert max(states).parent.name == f"step-{count:08d}"
    trained(tmp_path / "one", ("gpt",), 6)
    run = tmp_path / "place" / "run"
    assert losses(run, begin=3)[-2:] == pytest.approx(
        losses(tmp_path / "one" / "gpt")[-2:], rel=1e-9
    )
    check_weights(tmp_path / "one" / "gpt", run)
    shutil.rmtree(tmp_path / "machine1")
    check_weights(tmp_path / "one" / "gpt", place)  # type: ignore[arg-type]


def test_a_checkpoint_that_was_refused_is_kept_aside_and_said(
    store: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent by hand, the run goes on from it."""
    train_tiny(PLACE, steps=6)  # type: ignore[arg-type]
    plain = MemoryFileSystem.put_file

    def refuse(self: Any, *given: Any, **more: Any) -> None:
        if "step-00000008" in str(given):
            raise OSError("no room")
        plain(self, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "put_file", refuse)
        with pytest.raises(UnsavedError, match="no room"):
            train_tiny(PLACE, steps=12, resume=True)  # type: ignore[arg-type]
    assert steps(store)[-1] == 6
    with pytest.warns(UserWarning, match=f"step-00000008 is not at {PLACE}, so"):
        folder = fetched(PLACE, "resume")
    [kept] = (folder.parent / "unsent").iterdir()
    assert not (folder / "checkpoints" / kept.name).exists()
    store.put(str(kept), f"/bucket/run/checkpoints/{kept.name}", recursive=True)
    assert train_tiny(PLACE, steps=9, resume=True).steps == 9  # type: ignore[arg-type]
    assert [row[0] for row in curve(fetched(PLACE)) if row[1] is not None][-2:] == [8, 9]
