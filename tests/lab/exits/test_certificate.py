"""Certificates: kept whole, read back equal, and refused where they show nothing."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.lab.exits.certificate import Certificate
from everyformer.lab.exits.learn_then_test import Guarantee, fixed_sequence
from everyformer.system.sealed import DamagedError, write_json

LOST = {0.9: 0.0, 0.6: 0.01, 0.3: 0.2, 0.1: 0.3}
"""the loss of every prompt at each threshold; delta = 0.1 accepts those down to 0.6"""
NONE_PASSES = {"lost": {threshold: loss + 0.2 for threshold, loss in LOST.items()}}
UNSURE = {"lost": {threshold: loss + 0.09 for threshold, loss in LOST.items()}}
ALL_PASS = {"lost": dict.fromkeys(LOST, 0.0), "depth": 1.0}


def certificate(lost: dict[float, float] = LOST, **given: Any) -> Certificate:
    """Of 200 prompts, from a walk that was drawn to its end."""
    guarantee = Guarantee(0.1, 0.03)
    found = fixed_sequence(list(lost), lambda at: [lost[at]] * 200, guarantee, to_the_end=True)
    of: dict[str, Any] = {"consistency": "text", "metric": "tokens", "tokens": 32}
    of |= {"data": "d0", "model": "m0"}
    return Certificate.of(found, **of | given)


@pytest.mark.parametrize("given", [{}, NONE_PASSES, {"consistency": "risk"}])
def test_it_is_read_as_it_was_written(given: dict[str, Any], tmp_path: Path) -> None:
    kept = certificate(**given)
    kept.write(tmp_path / "certificate.json")
    assert Certificate.read(tmp_path / "certificate.json") == kept
    raw = json.loads((tmp_path / "certificate.json").read_text())
    assert raw["format"] == "everyformer-certificate"
    assert raw["threshold"] == kept.threshold == (0.6 if "lost" not in given else None)
    assert len(raw["steps"]) == 4
    step = kept.steps[1]
    assert raw["steps"][1] == {"threshold": 0.6, "risk": step.risk, "p": step.p}
    shown = [raw[name] for name in ("delta", "epsilon", "n", "p_value", "metric", "data", "model")]
    assert shown == [0.1, 0.03, 200, "hoeffding-bentkus", "tokens", "d0", "m0"]
    kept.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "certificate.json").read_bytes()


def test_it_cannot_be_changed_and_holds_its_values_to_their_bounds() -> None:
    kept = certificate()
    with pytest.raises(FrozenInstanceError):
        kept.delta = 0.5  # type: ignore[misc]
    for wrong in ({"delta": 1.5}, {"n": 0}, {"consistency": "words"}, {"metric": None}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(kept, **wrong)


def test_it_serves_its_own_model_alone() -> None:
    certificate().require("m0")
    for other in ("m1", ""):
        message = rf"another model \(fingerprint m0, given {other}\): cal.*everyformer calibrate"
        with pytest.raises(CheckpointError, match=message):
            certificate().require(other)


def test_a_damaged_file_or_another_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    with pytest.raises(DamagedError, match="missing"):
        Certificate.read(path)
    certificate().write(path)
    whole = path.read_text()
    for damaged in (
        *(whole[:-20], "", "[1]", whole.replace('"delta": 0.1', '"delta": 0.2')),
        *(whole.replace('\n "threshold": 0.6', '\n "threshold": 0.3'), whole.replace("m0", "m1")),
    ):
        assert damaged != whole
        path.write_text(damaged)
        with pytest.raises(DamagedError, match=r"certificate\.json"):
            Certificate.read(path)
    write_json(path, {"format": "everyformer-result"})
    with pytest.raises(CheckpointError, match="format 'everyformer-result'"):
        Certificate.read(path)
    for values in ({}, {"delta": 0.1, "unheard": 1}):
        write_json(path, {"format": "everyformer-certificate", **values})
        with pytest.raises(CheckpointError, match=r"certificate\.json.*calibrate again"):
            Certificate.read(path)


@pytest.mark.parametrize(
    ("given", "used", "saves", "words"),
    [
        ({}, 0.6, True, ["threshold 0.6", "distance from the full model's", "0.1", "0.97"]),
        ({"consistency": "risk"}, 0.6, True, ["loss beyond the full model of", "200 prompts"]),
        (NONE_PASSES, None, False, ["save nothing: no threshold passed", "delta=0.1", "without"]),
        ({"depth": 1.0, "operations": 1.0}, None, False, ["threshold 0.6 passed", "no token"]),
        (UNSURE, None, False, ["loss of 0.09 at 0.9 is below delta", "more --prompts than 200"]),
        (NONE_PASSES, None, False, ["loss at 0.9 is 0.2: a larger --delta than that", "longer"]),
        ({"depth": 1.0}, None, False, ["The loss at 0.3 is 0.2: a larger", "longer"]),
        (ALL_PASS, None, False, ["No token ever leaves", "Lower --thresholds than 0.1 may let"]),
        ({"depth": 0.999, "operations": 1.0}, 0.6, False, ["They save nothing", "1.00 times the"]),
        ({"operations": 1.2}, 0.6, False, ["at most 0.1, with", "1.20 times the full"]),
        ({"depth": 0.9, "operations": 0.99}, 0.6, True, ["threshold 0.6 have", "at most 0.1"]),
    ],
)  # fmt: skip
def test_it_says_what_is_guaranteed_and_uses_no_threshold_that_spares_nothing(
    given: dict[str, Any], used: float | None, saves: bool, words: list[str]
) -> None:
    made = certificate(**given)
    assert (made.used, made.saves) == (used, saves)
    for word in (*words, "tokens", "hoeffding-bentkus"):
        assert word in made.statement
    assert ("nothing" in made.statement) == (not saves)
    assert ("probability" in made.statement) == (used is not None)
