"""Searches of thresholds of early exits on held-out data, and their Pareto front.

A threshold for all layers is tried at even steps; where each layer may have its own, so are
thresholds that are drawn for each layer, as Elbayad et al. (arXiv 1910.10073, 4.2) tune theirs.
On the front are those than which none has less loss at no more layers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everyformer.core.errors import ConfigError
from everyformer.data.dataset import Dataset
from everyformer.genes.depth.early_exits import exit_of, set_threshold
from everyformer.models.base import Model
from everyformer.system.sealed import read_json, write_json
from everyformer.training.evaluate import evaluate

FORMAT = "everyformer-exit-search"


class Tried(NamedTuple):
    """One setting."""

    thresholds: tuple[float, ...]
    """one for all layers, or one for each but the last; () where no token leaves"""
    depth: float
    """layers of a token on average"""
    loss: float
    accuracy: float


def search_thresholds(
    model: Model, dataset: Dataset, count: int, seed: int = 0, **rules: Any
) -> Iterator[Tried]:
    """Evaluate with no exits, then ``count`` settings; ``rules`` are those of `evaluate`.

    Raises:
        ConfigError: the model has no early exits, or none that a threshold decides.
    """
    part = exit_of(model)
    if not part.has_threshold:
        raise ConfigError(
            f"depth '{part.name}' leaves without a threshold here, so none can be searched"
        )
    before = part.options, part.full
    try:
        for chosen in _settings(count, part.layers - 1, hasattr(part.options, "thresholds"), seed):
            set_threshold(model, *([chosen] if chosen else [None]))
            result = evaluate(model, dataset, **rules)
            assert result is not None
            depth = result.get("mean_depth", float(part.layers))
            yield Tried(chosen, depth, result["loss"], result["accuracy"])
    finally:
        part.options, part.full = before


def write_tries(path: Path, tried: Sequence[Tried]) -> None:
    """Write what was tried to a sealed JSON file."""
    write_json(path, {"format": FORMAT, "tried": [one._asdict() for one in tried]})


def read_tries(path: Path) -> list[Tried]:
    """The settings that `write_tries` wrote.

    Raises:
        DamagedError: the file is missing, cut short or changed.
        CheckpointError: it holds something else.
    """
    result = read_json(path, FORMAT)["tried"]
    return [Tried(**one | {"thresholds": tuple(one["thresholds"])}) for one in result]


def _settings(count: int, layers: int, by_layer: bool, seed: int) -> Iterator[tuple[float, ...]]:
    yield ()
    even = count // 2 if by_layer and layers > 1 else count
    yield from ((float(one),) for one in np.linspace(1, 0, even + 2)[1:-1].round(4))
    random = np.random.default_rng(seed)
    for _ in range(count - even):
        yield tuple(random.random(layers).round(4).tolist())


def pareto(tried: Sequence[Tried]) -> list[Tried]:
    """The settings that no other one beats, from the shallowest on."""
    front: list[Tried] = []
    for one in sorted(tried, key=lambda each: (each.depth, each.loss)):
        if not front or one.loss < front[-1].loss:
            front.append(one)
    return front
