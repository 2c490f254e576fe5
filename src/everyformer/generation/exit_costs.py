"""What early exits save: layers, operations and seconds, beside the same model without them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everyformer.core.config import Choice
from everyformer.depth import DEPTH
from everyformer.engines.flops import count_flops
from everyformer.generation.calibration import Calibration
from everyformer.models.base import Model
from everyformer.models.build import build_model


@dataclass(frozen=True)
class Costs:
    """Of one token that is written."""

    layers: int
    depth: float
    """layers on average"""
    operations: float
    """multiplications and additions, with the keys of tokens that left and what decides"""
    full_operations: float
    """of the full model"""
    speed: float
    """tokens a second"""
    full_speed: float
    """of the same model where no token leaves"""
    plain_speed: float
    """of the same layers in a model that knows no exits"""
    batch: int
    """texts at a time"""


def exit_costs(calibration: Calibration, threshold: float | None, rounds: int = 5) -> Costs:
    """Measure on the first prompts, in turn, after a round that does not count."""
    model, batch = calibration.model, calibration.batch
    some = Calibration(
        model, calibration.prompts[:batch], calibration.tokenizer, tokens=calibration.tokens,
        batch=batch,
    )  # fmt: skip
    plain = Calibration(
        without_exits(model), some.prompts, some.tokenizer, tokens=some.tokens, batch=batch
    )
    written = some.write(threshold)
    count = max(1, sum(map(len, written.texts)))
    ways: dict[str, Callable[[], Any]] = {
        "early": lambda: some.write(threshold),
        "full": lambda: some.write(None),
        "plain": lambda: plain.write_all(),
    }
    operations = {name: count_flops(ways[name]) / count for name in ("early", "full")}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    speeds = {name: count / statistics.median(times) for name, times in seconds.items()}
    return Costs(
        len(model.stack.order), written.depth, operations["early"], operations["full"],
        speeds["early"], speeds["full"], speeds["plain"], len(some.prompts),
    )  # fmt: skip


def without_exits(model: Model) -> Model:
    """The same layers and weights in a model whose tokens go through all layers."""
    plain = model.config.with_genes(depth=Choice(DEPTH.default))
    made = build_model(plain).to(next(model.parameters()))
    made.load_state_dict(model.state_dict(), strict=False)
    return made.eval()
