"""What `doctor` tells of the machine: room, speed, and what unset options are here."""

import json
import os
import re
import shutil
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import torch
from commands import Say

from everyformer.cli.verbs import doctor
from everyformer.training import surroundings
from sequence_laws import memory


def test_room_speed_and_choices_are_told(say: Say) -> None:
    found = json.loads(say("doctor", "--json")[1])
    assert found["machine"].keys() >= {"load", "free memory", "free disk"}
    assert all(speed > 0 for speed in found["speed"].values())
    assert found["speed"].keys() == {"float32", "bfloat16"}
    here = {row["option"]: row["here"] for row in found["choices"]}
    assert here["--threads"] == str(torch.get_num_threads())
    assert here["--device"] == "cpu" or torch.accelerator.is_available()
    page = say("doctor")[1]
    for word in ("load", "free memory", "free disk", "GFLOP/s", "--precision"):
        assert word in page


def test_what_the_system_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", silent)
    monkeypatch.setattr(shutil, "disk_usage", silent)
    monkeypatch.setattr(memory, "free_memory", lambda: float("inf"))
    told = doctor.room()
    assert all(value.startswith("unknown") for value in told.values())


@pytest.mark.parametrize(("load", "bfloat16", "told"), [(0.0, 10.0, False), (99.0, 30.0, True)])
def test_other_work_and_a_faster_bfloat16_are_remarked(load, bfloat16, told, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    found = doctor.choices(torch.device("cpu"), {"float32": 10.0, "bfloat16": bfloat16})
    since = {row["option"]: row["since"] for row in found}
    assert ("fewer may be faster" in since["--threads"]) is told
    assert ("try --precision auto" in since["--precision"]) is told


def test_every_package_is_told_with_the_extra_that_installs_it(say: Say) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    packages = {f"everyformer[{name}]": extras[name] for name in extras if name != "dev"}
    packages["core"] = project["project"]["dependencies"]
    expected = {(re.split(r"[<>=; ]", p)[0], why) for why in packages for p in packages[why]}
    found = json.loads(say("doctor", "--json")[1])["packages"]
    assert {(name, why) for name, _, why in found} == expected


def test_versions_beyond_those_that_were_tried_are_told(say, monkeypatch):
    needs = [
        "torch>=2.8,<2.16", "numpy>=1.26", "onnx<1.24,>=1.18; extra == 'export'",
        "transformers<5.25,>=5; extra == 'hf'", "transformers<5.25,>=5; extra == 'dev'",
        "timm!=2,<=1.0; extra == 'dev'", "linformer==0.2.3; extra == 'peers'",
        "fla-core<0.7,>=0.5.1; extra == 'peers'", "ray>=2; extra == 'ray'",
    ]  # fmt: skip
    here = {"torch": "2.9.1+cpu", "numpy": "9.0", "onnx": "1.23.99", "transformers": "5.100.0.dev0",
            "linformer": "0.2.4", "fla-core": "0.7", "timm": "0.9"}  # fmt: skip
    monkeypatch.setattr(doctor, "requires", lambda name: needs)
    monkeypatch.setattr(surroundings, "version_of", here.get)
    assert json.loads(say("doctor", "--json")[1])["untried"] == [
        ["transformers", "5.100.0.dev0", "<5.25"],
        ["linformer", "0.2.4", "==0.2.3"],
        ["fla-core", "0.7", "<0.7"],
    ]
    [told] = re.findall(r"(?m)^transformers 5.*newer.*", say("doctor")[1])
    assert told.endswith("is newer than what was tried: pip install 'transformers<5.25'")


def test_every_extra_is_told_with_what_it_is_for_and_how_it_comes(say, monkeypatch):
    known = surroundings.version_of
    absent = {"faiss-cpu", "ruff"}
    monkeypatch.setattr(
        surroundings, "version_of", lambda name: None if name in absent else known(name) or "1"
    )
    told = json.loads(say("doctor", "--json")[1])["extras"]
    assert [row["extra"] for row in told] == metadata("everyformer").get_all("Provides-Extra")
    assert all(row["for"] for row in told)
    lacking = {row["extra"]: (row["here"], row["command"]) for row in told if row["here"] != "yes"}
    assert lacking == {
        "knn": ("no: faiss-cpu", "pip install 'everyformer[knn]'"),
        "dev": ("no: ruff", "pip install 'everyformer[dev]'"),
    }
    assert "pip install 'everyformer[knn]'" in say("doctor")[1]
