"""The options of one training run, and the model that they and the data make together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from everyformer.cli.parsing import SHORT, first_word, parse, peek, read_toml
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError
from everyformer.data.base import Dataset
from everyformer.data.config import DataConfig
from everyformer.family import info, list_members
from everyformer.mixers import MIXERS
from everyformer.models.build import configure
from everyformer.models.config import Architecture, ModelConfig
from everyformer.positions import POSITIONS
from everyformer.training.config import TrainingConfig

M = TypeVar("M")
P = TypeVar("P")


@dataclass(frozen=True)
class NoOptions:
    """There is nothing to choose."""


@dataclass(frozen=True)
class RunConfig(Generic[M, P]):
    """One member, trained on one source of data."""

    member: tyro.conf.Positional[str]
    """a member's name (`everyformer list`)"""
    mixer: M
    """the mixer's own options"""
    place: P
    """the position's own options"""
    task: str | None = None
    """lm, classify-text, classify-image or pixels (default: what the data suggests)"""
    data: DataConfig = field(default_factory=DataConfig)
    model: Architecture = field(default_factory=Architecture)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    schedule: tuple[str, ...] = ()
    """options that differ by layer, as option=value,value,... with one value a layer"""
    out: str | None = None
    """directory of the run (default: runs/MEMBER)"""
    resume: bool = False
    """go on with the run in that directory"""


def read_run(words: Sequence[str], verb: str, about: str, examples: Sequence[str]) -> RunConfig:
    """Parse the flags of a run; the member named first decides which options exist."""
    path = peek(words, "--config")
    table = read_toml(path) if path is not None else {}
    names = [m.name for m in list_members()]
    member = first_word(words, names, "member") or table.get("member")
    if member is None and "--help" not in words and "-h" not in words:
        raise ConfigError(f"name the member to {verb} first; one of: {', '.join(names)}")
    position = peek([_long(w) for w in words], "--model.position")
    default = preset(member or "attention", position or table.get("model", {}).get("position"))
    kind: Any = RunConfig[type(default.mixer), type(default.place)]  # type: ignore[misc]
    return parse(
        kind, words, verb=verb, about=about, examples=examples, default=default, short=SHORT
    )


def preset(member: str, position: str | None = None) -> RunConfig:
    """The run that a member's own row describes, before anything is changed."""
    row = info(member)
    config = configure(member, row.tasks[0])
    mixer: Any = MIXERS.get(config.mixer)
    where = config.position if position is None else None if position == "None" else position
    place: Any = POSITIONS.get(where).Options if where is not None else NoOptions  # type: ignore[attr-defined]
    chosen = config.position_options if where == config.position else {}
    shape = {f.name: getattr(config, f.name) for f in dataclasses.fields(Architecture)}
    return RunConfig(
        member=member,
        mixer=from_dict(mixer.Options, config.mixer_options),
        place=from_dict(place, chosen),
        model=Architecture(**{**shape, "position": where}),
    )


def model_config(run: RunConfig, dataset: Dataset) -> ModelConfig:
    """The complete model: what the user chose, sized for what the data brings."""
    options: dict[str, Any] = {
        f.name: to_dict(getattr(run.model, f.name)) for f in dataclasses.fields(Architecture)
    }
    options["max_length"] = max(run.model.max_length or 0, dataset.length)
    return configure(
        run.member,
        dataset.task,
        mixer_options=to_dict(run.mixer),
        position_options=to_dict(run.place),
        schedule=dict(_schedule(item) for item in run.schedule),
        vocabulary=dataset.vocabulary,
        classes=max(len(dataset.classes), 1),
        image=dataset.image,
        **options,
    )


def run_folder(run: RunConfig) -> Path:
    """Where the run is kept."""
    return Path(run.out) if run.out is not None else Path("runs") / run.member


def _schedule(item: str) -> tuple[str, list[Any]]:
    name, equals, values = item.partition("=")
    if not equals:
        raise ConfigError(f"--schedule takes option=value,value,..., not '{item}'")
    return name.replace("-", "_"), [_value(v) for v in values.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None if text == "None" else text


def _long(word: str) -> str:
    flag, equals, value = word.partition("=")
    return SHORT.get(flag, flag) + equals + value
