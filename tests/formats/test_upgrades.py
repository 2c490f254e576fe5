"""What earlier versions saved loads, gives the same outputs, is evaluated and goes on.

How the files were made stands in README.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from old_formats import FURTHER, example

import everyformer as ef
from everyformer.cli import main
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import stream
from everyformer.generation.state_file import load_state
from everyformer.system.sealed import DamagedError, write_json
from everyformer.training.upgrades import MODEL_FORMAT, RUN_FORMAT, UPGRADES, read_saved

HERE = Path(__file__).parent
MODELS = ("652fd9f/pixels", "9018ed0/bigbird", "9018ed0/image-transformer", "bf02051/alibi",
          *(f"1363f7a/{name}" for name in ("heads", "compressive", "gelu")))  # fmt: skip
TEXTS = (
    *("cfe6dd7/attention", "cfe6dd7/gmlp", "cfe6dd7/aft-simple", "cfe6dd7/linear"),
    *("cfe6dd7/transformer-xl", "cfe6dd7/compressive"),
    *("9018ed0/reformer", "9018ed0/routing", "9018ed0/sinkhorn", "9018ed0/longformer"),
)
RUNS = (
    "652fd9f/pixels-run",
    *(f"9018ed0/{name}-run" for name in ("attention", "routing", "compressive", "bigbird")),
    "9018ed0/layers-run",
    "bf02051/rope-run",
    *(f"1363f7a/{name}-run" for name in ("xl", "t5", "reversible", "heads", "bert")),
)


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A copy of what was saved, in a working directory with its data."""

    def copy(place: str) -> Path:
        shutil.copytree(HERE / place, tmp_path / Path(place).name)
        if (text := HERE / place / "../text.txt").exists():
            shutil.copy(text, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
        return Path(Path(place).name)

    return copy


def then(place: str) -> dict[str, Any]:
    """What the old code gave."""
    told: dict[str, Any] = json.loads((HERE / f"{place}.json").read_text())
    return told


@pytest.mark.parametrize("place", [*MODELS, *RUNS])
def test_what_was_saved_loads_and_gives_the_outputs_of_then(place: str) -> None:
    model = ef.load(HERE / place)
    with torch.no_grad():
        logits = model(example(model.config)).logits.flatten()
    expected = then(place)["logits"]
    given = logits[:: max(1, len(logits) // 64)].tolist()
    assert given == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("place", [f"{text}-text" for text in TEXTS])
def test_a_text_goes_on_from_its_state_as_then(place: str) -> None:
    model, file = ef.load(HERE / place), HERE / place / "text.state"
    state, last = load_state(file, model)
    rest = stream(model, last, tokens=13, sampling=Sampling(temperature=0), state=state)
    assert [int(token) for token in rest] == then(place)["then"]
    with torch.no_grad():
        further = model(torch.tensor([FURTHER]), state=load_state(file, model)[0]).logits
    assert further.flatten().tolist() == pytest.approx(then(place)["further"], abs=2e-5)
    # it is the state that says so
    fresh = model(torch.tensor([FURTHER]), state=model.init_state(1)).logits
    assert further.flatten().tolist() != pytest.approx(fresh.flatten().tolist(), abs=1e-2)


@pytest.mark.parametrize("place", MODELS)
def test_what_was_loaded_is_saved_in_the_form_of_today(place: str, tmp_path: Path) -> None:
    model = ef.load(HERE / place)
    ef.save(model, tmp_path / "again")
    again = ef.load(tmp_path / "again")
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert json.loads((tmp_path / "again" / "config.json").read_text())["version"] == 4


@pytest.mark.parametrize("place", RUNS)
def test_a_run_is_evaluated_as_then(
    place: str, copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(copied(place)), "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["evaluation"]["loss"]
    assert loss == pytest.approx(then(place)["loss"], abs=2e-5)


@pytest.mark.parametrize("place", RUNS)
def test_a_run_goes_on_as_one_that_was_never_stopped(
    place: str, copied: Callable[[str], Path]
) -> None:
    run = copied(place)
    assert main(["train", "--resume", "--out", str(run), "--training.steps", "4"]) == 0
    state = json.loads((run / "checkpoints" / "step-00000004" / "state.json").read_text())
    # centroids did not move when the file of routing was written
    tolerance = 2e-3 if "routing" in place else 2e-5
    assert state["evaluation"]["loss"] == pytest.approx(
        then(place)["loss of four steps"], abs=tolerance
    )


def test_a_comparison_goes_on_as_one_that_was_never_stopped(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("1363f7a/comparison")
    assert main(["compare", "--resume", "--out", str(folder), "--training.steps", "4"]) == 0
    rows = json.loads((folder / "results.json").read_text())["rows"]
    losses = {row["member"]: row["quality"] for row in rows}
    assert losses == pytest.approx(then("1363f7a/comparison")["four steps"], abs=2e-5)


@pytest.mark.parametrize("place", ["652fd9f/pixels-run", "9018ed0/bigbird-run"])
def test_checkpoints_of_two_versions_have_a_mean(place: str, copied: Callable[[str], Path]) -> None:
    run = copied(place)
    before = ef.load(run, average=1)
    assert main(["train", "--resume", "--out", str(run), "--training.steps", "4"]) == 0
    after, mean = (ef.load(run, average=count) for count in (1, 2))
    weights = [dict(model.named_parameters()) for model in (before, after, mean)]
    for name, weight in weights[2].items():
        torch.testing.assert_close(weight, (weights[0][name] + weights[1][name]) / 2)


def test_a_model_begins_with_what_an_older_one_learned(copied: Callable[[str], Path]) -> None:
    run = copied("652fd9f/pixels-run")
    words = ["train", "--from", str(run), "--data", "digits", "--training.steps", "1"]
    assert main([*words, "--training.batch", "2", "--out", "next"]) == 0


def old_model(folder: Path, **options: Any) -> Path:
    """A saved model of version 1 with ``options`` in its config."""
    ef.save(ef.create_model("attention", width=8, layers=2, heads=2, vocabulary=5), folder)
    values = json.loads((folder / "config.json").read_text())
    for gene in ("mixer", "position", "memory"):
        chosen = values["config"].pop(gene)
        values["config"] |= {gene: chosen.pop("name"), f"{gene}_options": chosen}
    values["config"].update(options)
    del values["version"], values["digest"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everyformer.system.sealed.VERSION", 1)
        write_json(folder / "config.json", values)
    return folder


IDLE = [
    ({"mixer": "linear", "mixer_options": {"feature_map": "elu", "nu": 7}}, "nu", 4),
    ({"position": "alibi", "position_options": {"sides": "symmetric", "right_slopes": [0.5, 0.5]}},
     "right_slopes", None),
    ({"memory": "compressive", "memory_options": {"slots": 4}}, "slots", 4),
    ({"mixer": "by-head", "mixer_options": {"mixers": ["linear", "attention"],
      "own": {"linear": {"nu": 7}}}}, "nu", 4),
    ({"mixer": "gmlp", "position": None, "max_length": 16, "mixer_options": {"expansion": 2.0}},
     "mlp_ratio", 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("options", "name", "value"), IDLE, ids=lambda each: str(each)[:40])
def test_options_that_were_taken_without_effect_are_as_if_never_given(
    options: dict[str, Any], name: str, value: Any, tmp_path: Path
) -> None:
    saved = read_saved(old_model(tmp_path / "m", **options) / "config.json", MODEL_FORMAT)
    tables = [saved["config"][gene] for gene in ("mixer", "position", "memory")]
    tables += tables[0].get("own", {}).values()
    assert [table[name] for table in tables if name in table] == [value]


LAYERS = [
    ("linear", {}, {"feature_map": ["elu", "dpfp"], "nu": [6, 7]}, {}, {"nu": [4, 7]}),
    ("linear", {"nu": 7}, {"feature_map": ["elu", "dpfp"]}, {}, {"nu": [4, 7]}),
    ("linear", {"nu": 7}, {"feature_map": ["elu", "relu"]}, {"nu": 4}, {}),
    ("linear", {"nu": 7}, {"feature_map": ["dpfp", "dpfp"]}, {"nu": 7}, {}),
    ("linear", {"feature_map": "relu"}, {"nu": [7, 8]}, {"nu": 4}, {}),
    ("linear", {"feature_map": "dpfp"}, {"nu": [6, 7]}, {}, {"nu": [6, 7]}),
    ("linear", {"nu": 7}, {"mixer": ["attention", "linear"]}, {"nu": 4}, {}),
    ("linear", {"nu": 7, "feature_map": "dpfp"}, {"mixer": ["attention", "linear"]}, {"nu": 7}, {}),
]


@pytest.mark.parametrize(("mixer", "own", "schedule", "options", "left"), LAYERS)
def test_options_that_some_layers_do_not_read_hold_in_the_others(
    mixer: str,
    own: dict[str, Any],
    schedule: dict[str, Any],
    options: dict[str, Any],
    left: dict[str, Any],
    tmp_path: Path,
) -> None:
    given = {"mixer": mixer, "mixer_options": own, "schedule": schedule}
    folder = old_model(tmp_path / "m", **given)
    config = read_saved(folder / "config.json", MODEL_FORMAT)["config"]
    shown = {name: config["mixer"][name] for name in options}
    assert shown == options
    assert {name: values for name, values in config["schedule"].items() if name == "nu"} == left
    assert ("nu" in config["mixer"]) != ("nu" in config["schedule"])
    # and the model is one that can be made
    own_options = {name: value for name, value in config["mixer"].items() if name != "name"}
    ef.create_model(
        "attention", width=8, layers=2, heads=2, vocabulary=5,
        mixer=mixer, mixer_options=own_options, schedule=config["schedule"],
    )  # fmt: skip


def test_flags_of_a_run_follow_the_layers_of_its_model(tmp_path: Path) -> None:
    run = HERE / "9018ed0/layers-run"
    values = json.loads((run / "config.json").read_text())
    del values["digest"], values["version"]
    values["run"]["schedule"] = ["pattern=strided,strided", "include_self=true,true"]
    values["model"]["schedule"] = {
        "pattern": ["strided", "strided"], "include_self": [True, True],
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everyformer.system.sealed.VERSION", 1)
        write_json(tmp_path / "config.json", values)
    held = read_saved(tmp_path / "config.json", RUN_FORMAT)
    assert held["run"]["schedule"] == ['pattern="strided","strided"']
    for table in (held["run"]["mixer"], held["model"]["mixer"]):
        assert (table["columns"], table["include_self"]) == (None, False)


def test_channels_of_gmlp_are_renamed_where_layers_differ_too(tmp_path: Path) -> None:
    gmlp = {"mixer": "gmlp", "position": None, "max_length": 16}
    own = {"mixer_options": {"expansion": 2.0}, "schedule": {"gate": [True, False]}}
    folder = old_model(tmp_path / "m", **gmlp, **own)
    held = read_saved(folder / "config.json", MODEL_FORMAT)["config"]["mixer"]
    assert held == {"name": "gmlp", "mlp_ratio": 2.0}


def test_files_of_today_are_taken_by_their_word(tmp_path: Path) -> None:
    folder = old_model(tmp_path / "m", mixer="linear", mixer_options={"nu": 7})
    values = read_saved(folder / "config.json", MODEL_FORMAT)
    values["config"]["mixer"] = {"name": "linear", "nu": 7}
    write_json(folder / "config.json", values)
    held = read_saved(folder / "config.json", MODEL_FORMAT)["config"]["mixer"]
    assert held == {"name": "linear", "nu": 7}


def test_an_upgraded_file_that_was_changed_is_damaged(copied: Callable[[str], Path]) -> None:
    folder = copied("652fd9f/pixels")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedError, match=r"model\.safetensors was cut short or damaged"):
        ef.load(folder)


def test_every_upgrade_has_a_name_of_its_own_and_stands_in_order() -> None:
    names = [upgrade.name for upgrade in UPGRADES]
    assert len(set(names)) == len(names)
    versions = [upgrade.before for upgrade in UPGRADES]
    assert versions == sorted(versions)


def test_a_comparison_of_version_1_keeps_what_its_forms_read(tmp_path: Path) -> None:
    from everyformer.comparison.folder import FORMAT, begun_with

    training = {"schedule": "noam", "min_lr_ratio": 0.2, "lr": 0.01}
    options = {"model": {"block": {"reversible_output": "mean"}}, "training": training}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everyformer.system.sealed.VERSION", 1)
        write_json(tmp_path / "comparison.json", {"format": FORMAT, "options": options, "data": ""})
    found = begun_with(tmp_path)
    assert found is not None
    assert found["training"] == training | {"min_lr_ratio": 0.1}
    assert found["model"]["block"] == {}
    assert found["wiring"] == {"name": "member"}


def test_a_comparison_of_version_2_goes_on_with_its_scales_of_embeddings(tmp_path: Path) -> None:
    """Members that were not yet trained start as those that were."""
    from everyformer.comparison.folder import FORMAT, begun_with

    members = ["attention", "rope", "transformer-xl", "alibi", "shaw"]
    options = {"members": members, "model": {"scale_embedding": None, "position": "member"},
               "options": ["alibi.position=sinusoidal", "shaw.scale_embedding=true"],
               "training": {}}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everyformer.system.sealed.VERSION", 2)
        write_json(tmp_path / "comparison.json", {"format": FORMAT, "options": options, "data": ""})
    found = begun_with(tmp_path)
    assert found is not None
    assert found["options"] == [
        *("alibi.position=sinusoidal", "shaw.scale_embedding=true"),
        *("attention.scale_embedding=true", "rope.scale_embedding=false"),
        "alibi.scale_embedding=true",
    ]
