"""Savings of early exits in layers, operations and seconds, against the same model without them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from everyformer.core.config import Choice
from everyformer.data.selection import spread
from everyformer.genes.depth import DEPTH
from everyformer.lab.exits.calibration import Calibration, Text
from everyformer.models.base import Model
from everyformer.models.build import build_model
from sequence_laws.flops import count_flops

ALONE = 4
"""prompts that are continued one by one, to be timed"""


@dataclass(frozen=True)
class Speed:
    """Tokens a second."""

    batch: int
    """texts at a time"""
    early: float
    """with exits"""
    full: float
    """of the same model where no token leaves"""
    plain: float
    """of the same layers in a model that knows no exits"""


@dataclass(frozen=True)
class Costs:
    """Costs of one token that is written."""

    layers: int
    depth: float
    """layers on average"""
    operations: float
    """multiplications and additions, with the keys of tokens that left and what decides"""
    full_operations: float
    """of the full model"""
    speeds: tuple[Speed, ...]
    """of one text at a time, and of as many as the calibration writes"""


def exit_costs(calibration: Calibration, threshold: float | None, rounds: int = 5) -> Costs:
    """Measure on some prompts, in turn, after a round that does not count; each way of
    writing by the tokens that it wrote itself."""
    model, several = calibration.model, min(calibration.batch, len(calibration.prompts))
    speeds = []
    for batch in sorted({1, several}):
        of_all = spread(len(calibration.prompts), batch if batch > 1 else ALONE)
        prompts = [calibration.prompts[n] for n in of_all]
        some, plain = (
            Calibration(
                variant, prompts, calibration.tokenizer, tokens=calibration.tokens, batch=batch
            )
            for variant in (model, without_exits(model))
        )
        ways: dict[str, Callable[[], list[Text]]] = {
            "early": partial(some.write, threshold),
            "full": partial(some.write, None),
            "plain": plain.write_all,
        }
        # the texts of one way may end sooner than those of another
        counts = {name: max(1, sum(map(len, way()))) for name, way in ways.items()}
        operations = {name: count_flops(ways[name]) / counts[name] for name in ("early", "full")}
        seconds = _in_turn(ways, rounds)
        speeds.append(Speed(batch, **{name: counts[name] / seconds[name] for name in ways}))
    return Costs(
        len(model.stack.order), some.depths[threshold], operations["early"], operations["full"],
        tuple(speeds),
    )  # fmt: skip


def _in_turn(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def without_exits(model: Model) -> Model:
    """A model of the same layers and weights whose tokens go through all layers."""
    plain = model.config.with_genes(depth=Choice(DEPTH.default))
    made = build_model(plain).to(next(model.parameters()))
    made.load_state_dict(model.state_dict(), strict=False)
    return made.eval()
