"""`everyformer eval RUN [--data ...]`: how good a trained run is, on its own or on other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from everyformer.cli.console import emit, facts
from everyformer.cli.flags import arrange, flags_of
from everyformer.cli.parsing import parse, say
from everyformer.core.errors import ConfigError
from everyformer.data.config import DataConfig


@dataclass(frozen=True)
class EvalOptions:
    run: tyro.conf.Positional[str]
    """directory of a trained run"""
    data: DataConfig = field(default_factory=DataConfig)
    """other data; its tokenizer is the run's (default: what the run was trained on)"""
    sequences: int | None = None
    """validation sequences read (default: all)"""
    batch: int = 16
    """sequences a forward pass"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast"""
    json: bool = False
    """machine output"""


def run(words: Sequence[str]) -> int:
    """Evaluate and print every number with its 95% interval."""
    placed, _ = arrange(words, flags_of(EvalOptions))
    place = placed[0] if placed else None
    saved = None if place is None else _data_of(place)
    options = parse(
        EvalOptions,
        words,
        verb="eval",
        about="Measure a trained run on its validation data, or on other data.",
        examples=("everyformer eval runs/aft-local", "everyformer eval runs/gmlp --data other.txt"),
        default=None if place is None else EvalOptions(run=place, data=saved or DataConfig()),
    )
    if options.batch < 1:
        raise ConfigError(f"batch must be at least 1, not {options.batch}")
    from everyformer.cli.trained import open_run
    from everyformer.training.evaluate import evaluate

    trained = open_run(options.run)
    dataset = trained.dataset(options.data)
    say(f"{dataset.name}: {dataset.split}")
    model = trained.model()
    found = evaluate(
        model,
        dataset,
        batch=options.batch,
        limit=options.sequences,
        precision=options.precision,
    )
    assert found is not None
    if options.json:
        emit({"run": options.run, "data": dataset.summary(), "evaluation": found})
        return 0
    rows = {}
    for name, value in found.items():
        if isinstance(value, int | float):
            around = found.get(f"{name}_interval")
            span = f"   95% interval {around[0]:.5g} to {around[1]:.5g}" if around else ""
            rows[name] = f"{value:.6g}{span}"
    print(facts(rows))
    return 0


def _data_of(place: str) -> DataConfig | None:
    from everyformer.cli.trained import data_config

    if not Path(place).is_dir():
        raise ConfigError(f"there is no run at {place}: give the directory that `train` made")
    return data_config(place)
