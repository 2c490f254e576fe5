"""Saved models and checkpoints: whole or not there, and every fault named."""

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training_stand_ins import TinyConfig, TinyModel, tiny_training, train_tiny

from everyformer.core.config import from_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.system.sealed import read_json, write_json
from everyformer.training.checkpoint import (
    CheckpointParts,
    TrainingState,
    checkpoints,
    drop_checkpoints,
    load_model_of,
    newest_checkpoint,
    save_checkpoint,
)
from everyformer.training.optimiser import build_optimiser
from everyformer.training.run import RunDirectory
from everyformer.training.saved import load_model, save_model
from everyformer.training.storage import load_weights, weights_of, write_tensors


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs are those of the stand-in."""
    made = lambda values: TinyModel(from_dict(TinyConfig, values))  # noqa: E731
    monkeypatch.setattr("everyformer.training.saved.build_from_values", made)


def flip_byte(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def test_a_saved_model_comes_back_with_its_ties_and_dtype(tmp_path: Path) -> None:
    model = TinyModel(TinyConfig(width=6)).double()
    model.calls += 3
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert isinstance(loaded, TinyModel)
    assert not loaded.training
    assert loaded.head.weight is loaded.embedding.weight
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
        assert loaded.state_dict()[name].dtype == value.dtype
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert ("head.weight" in stored) != ("embedding.weight" in stored)
    save_model(loaded, tmp_path / "m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    # of a compiled model the one inside
    save_model(torch.compile(model, backend="eager"), tmp_path / "m")
    assert torch.equal(load_model(tmp_path / "m").head.weight, model.head.weight)
    # views of one table
    whole = torch.arange(12.0)
    model.register_buffer("first", whole[:6])
    model.register_buffer("second", whole[3:9])
    write_tensors(tmp_path / "model.safetensors", *weights_of(model))
    assert torch.equal(load_file(tmp_path / "model.safetensors")["second"], whole[3:9])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: setattr(m.head, "weight", nn.Parameter(2 * m.head.weight.detach())),
         "'head.weight' is not tied to another weight"),
        (lambda m: setattr(m.inner, "bias", m.norm.bias), "'inner.bias' is tied to another weight"),
        (lambda m: setattr(m, "value", nn.Linear(8, 1)), "'value.weight' is unknown to the model"),
        (lambda m: setattr(m, "inner", nn.Linear(8, 9)),
         r"'inner.weight' has shape \(9, 8\), the model's is \(8, 8\)"),
    ],
)  # fmt: skip
def test_a_model_that_its_config_does_not_describe_is_not_saved(change, told, tmp_path):
    model = TinyModel()
    change(model)
    with pytest.raises(CheckpointError, match=told):
        save_model(model, tmp_path / "m")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("harm", [flip_byte, cut_short, Path.unlink])
def test_a_damaged_model_is_named(tmp_path: Path, name: str, harm: Any) -> None:
    save_model(TinyModel(), tmp_path / "m")
    harm(tmp_path / "m" / name)
    with pytest.raises(CheckpointError, match=name):
        load_model(tmp_path / "m")


def test_a_model_that_does_not_fit_says_what(tmp_path: Path) -> None:
    model = TinyModel()
    weights = dict(model.state_dict())
    weights["stranger"] = torch.zeros(1)
    del weights["inner.bias"]
    weights["norm.weight"] = torch.ones(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, weights, tmp_path)
    for part in ("'stranger' is unknown", "'inner.bias' is missing", "(3,)", "(8,)"):
        assert part in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_foreign_folders_are_neither_loaded_nor_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not replaced"):
        save_model(TinyModel(), tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match="not written by everyformer"):
        load_model(tmp_path)


def make_checkpoints(folder: Path, steps: list[int], best: int | None = None) -> None:
    model = TinyModel()
    optimiser = build_optimiser(model, tiny_training())
    for step in steps:
        state = TrainingState(steps=step, best=None if best is None else {"step": best, "loss": 1})
        with torch.no_grad():
            model.inner.bias.fill_(step)
        save_checkpoint(folder, state, CheckpointParts(model, optimiser))
        drop_checkpoints(folder, state, 2)


@pytest.mark.parametrize(
    ("name", "harm"),
    [("model.safetensors", flip_byte), ("optimiser.safetensors", cut_short),
     ("optimiser.safetensors", flip_byte), ("state.json", Path.unlink), ("state.json", cut_short)],
)  # fmt: skip
def test_a_damaged_checkpoint_falls_back_and_says_so(tmp_path: Path, name: str, harm: Any) -> None:
    make_checkpoints(tmp_path, [1, 2])
    harm(tmp_path / "step-00000002" / name)
    with pytest.warns(UserWarning, match=rf"step-00000002 is skipped.*{name}"):
        found = newest_checkpoint(tmp_path)
    assert found[1].steps == 1
    model = TinyModel()
    load_model_of(found[0], model)
    assert model.inner.bias.tolist() == [1.0] * 8


def test_any_flipped_bit_of_the_state_is_noticed(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, [1, 2])
    path = tmp_path / "step-00000002" / "state.json"
    whole = path.read_bytes()
    spaces = {place for place, byte in enumerate(whole) if byte in b" \n"}
    for place in range(0, len(whole), 7):
        if place in spaces:
            continue
        path.write_bytes(whole)
        flip_byte(path, place)
        with pytest.warns(UserWarning, match="skipped"):
            assert newest_checkpoint(tmp_path)[1].steps == 1  # type: ignore[index]


def test_the_last_two_and_the_best_are_kept_and_none_that_is_whole_is_an_error(tmp_path) -> None:
    assert newest_checkpoint(tmp_path) is None
    make_checkpoints(tmp_path / "five", [1, 2, 3, 4, 5], best=2)
    assert [path.name[-1] for path in checkpoints(tmp_path / "five")] == ["2", "4", "5"]
    make_checkpoints(tmp_path, [1, 2])
    with pytest.raises(CheckpointError, match=r"inner\.weight.*\(8, 8\).*\(5, 5\)"):
        load_model_of(tmp_path / "step-00000001", TinyModel(TinyConfig(width=5)))
    for path in checkpoints(tmp_path):
        cut_short(path / "model.safetensors")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(CheckpointError, match="all 2 checkpoints"),
    ):
        newest_checkpoint(tmp_path)


def save_within_a_limit(folder: Path, size: int) -> None:
    """The system itself refuses to write more, as it does on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    with pytest.raises(CheckpointError, match="cannot write"):
        make_checkpoints(folder, [2])


@pytest.mark.full("trains behind a full disk, seconds")
@pytest.mark.parametrize("size", [100, 1000])
def test_a_refused_write_loses_no_checkpoint(children, tmp_path, size):
    make_checkpoints(tmp_path, [1])
    child = children.Process(target=save_within_a_limit, args=(tmp_path, size))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert newest_checkpoint(tmp_path)[1].steps == 1  # type: ignore[index]


def test_a_run_loads_its_best_averaged_weights(tmp_path: Path) -> None:
    result = train_tiny(tmp_path / "run", ema=0.8, steps=8)
    loaded = load_model(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / f"step-{result.best['step']:08d}"
    average = load_file(folder / "ema.safetensors")
    assert torch.equal(loaded.state_dict()["inner.weight"], average["inner.weight"])
    flip_byte(folder / "ema.safetensors")
    with pytest.warns(UserWarning, match="skipped"):
        load_model(tmp_path / "run")


def test_a_run_loads_the_mean_of_its_newest_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_tiny(run, steps=9, checkpoint_every=2, evaluate_every=None, keep=3)
    paths = checkpoints(run / "checkpoints")
    assert [path.name[-1] for path in paths] == ["6", "8", "9"]
    weights = [load_file(path / "model.safetensors") for path in paths[-2:]]
    mean = load_model(run, average=2).state_dict()
    for name, first in weights[0].items():
        expected = (first.double() + weights[1][name].double()) / 2
        assert torch.equal(mean[name], expected.to(first.dtype)), name
    with pytest.raises(CheckpointError, match="the newest 3 checkpoints, of which 4 are wanted"):
        load_model(run, average=4)
    with pytest.raises(CheckpointError, match="at least 1"):
        load_model(run, average=0)


def test_a_best_checkpoint_that_is_older_is_not_averaged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_tiny(run, steps=8, checkpoint_every=2, evaluate_every=None, keep=2)
    kept = checkpoints(run / "checkpoints")
    mean = load_model(run, average=2).state_dict()
    # of a run whose loss was lowest early, that checkpoint stays beside the newest
    shutil.copytree(kept[0], run / "checkpoints" / "step-00000002")
    weights = dict.fromkeys(mean, torch.zeros(()))
    older = run / "checkpoints" / "step-00000002"
    write_tensors(older / "model.safetensors", weights)
    for name, value in load_model(run, average=2).state_dict().items():
        assert torch.equal(value, mean[name]), name
    with pytest.raises(
        CheckpointError, match=r"newest 2 checkpoints and an older best, of which 3 are .*at most 2"
    ):
        load_model(run, average=3)


def test_a_run_directory_in_use_or_filled_or_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run"):
        RunDirectory(tmp_path / "nowhere", resume=True)
    (tmp_path / "notes.txt").write_text("not a run")
    with pytest.raises(CheckpointError, match="is not a run"):
        RunDirectory(tmp_path, resume=True)
    with RunDirectory(tmp_path / "run") as run:
        with pytest.raises(ConfigError, match="in use"):
            RunDirectory(tmp_path / "run")
        run.write_config({"model": None})
    with pytest.raises(ConfigError, match="`resume`"):
        RunDirectory(tmp_path / "run")
    with RunDirectory(tmp_path / "run", resume=True) as run:
        assert run.config()["model"] is None  # type: ignore[index]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_json_is_sealed_as_it_will_be_read(tmp_path: Path) -> None:
    values = {"format": "f", "layers": {10: "a", 9: "b"}, "path": tmp_path, "pair": (1, 2.5)}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json", "f")["layers"] == {"10": "a", "9": "b"}
    with pytest.raises(CheckpointError, match="'g' is needed"):
        read_json(tmp_path / "x.json", "g")
