"""`curve` of a training, and `advice` for one that came to nothing: what was seen in its curve."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NotRequired, TypedDict, cast

from everyformer.core.wording import pluralise
from everyformer.training.logging import read_metrics

Evaluation = dict[str, Any]
"""what `training.evaluate` gives: ``loss`` and what else the task is measured by, each with its
``METRIC_interval``"""
MOVED = 0.02
"""of a loss: what is less is no change"""
FALLING = 0.01
"""of a loss, from its last fifth but one to its last"""
APART = 1.15
"""held-out loss over training loss from which on a model has learned its rows by heart"""
SURE = 4.0
"""standard errors from which on a rise is none of the batches' luck"""
FAST = 1e-3
"""a learning rate from which on ten times as much is too much"""
FEW = 8
"""logged steps from which on a curve says something"""

LONGER = "train longer (--steps or --budget-seconds)"


class Logged(TypedDict):
    """A step or an evaluation of metrics.jsonl, with what had been spent by then."""

    step: int
    seconds: float
    tokens: int
    flops: int
    loss: NotRequired[float]
    evaluation: NotRequired[Evaluation]


class Curve(TypedDict):
    """Curve of a training."""

    training: list[Logged]
    evaluations: list[Logged]


def curve(run: Path, last: int | None = None) -> Curve:
    """Training and evaluation rows of a run's metrics.jsonl, evaluations with their cost so far.

    ``last``: the step that they end with.
    """
    rows = read_metrics(run / "metrics.jsonl")
    if last is not None:
        rows = [row for row in rows if row["step"] <= last]
    training = [row for row in rows if "evaluation" not in row]
    evaluations = [row for row in rows if "evaluation" in row]
    by_step = {row["step"]: row for row in training}
    for row in evaluations:
        near = by_step.get(row["step"]) or max(
            (r for r in training if r["step"] <= row["step"]), key=lambda r: r["step"], default={}
        )
        row |= {key: near.get(key, 0) for key in ("seconds", "tokens", "flops")}
    return cast(Curve, {"training": training, "evaluations": evaluations})


def advice(evaluation: Mapping[str, Any], curve: Curve, lr: float) -> str:
    """A sentence on what the curve shows and what to try, of a model that no one should use.

    Args:
        evaluation: its last one. curve: of its training.
        lr: peak learning rate.
    """
    losses = [float(row["loss"]) for row in curve["training"] if "loss" in row]
    if len(losses) < FEW:
        logged = pluralise(len(losses), "logged step")
        return f"the training was too short to say why ({logged}): {LONGER}"
    fifth = max(1, len(losses) // 5)
    start, before, end = losses[0], mean(losses[-2 * fifth : -fifth]), mean(losses[-fifth:])
    lowest = min(mean(losses[n : n + fifth]) for n in range(len(losses) - fifth + 1))
    held_out = float(evaluation["loss"])
    rises = end > start * (1 + MOVED) or end > lowest * (1 + 5 * MOVED)
    if rises and end - lowest > SURE * _luck(losses, fifth) and not _falls(curve):
        return (
            f"the training loss rose again, from {lowest:.3g} to {end:.3g}: try a lower learning "
            f"rate (--lr {lr / 10:.1g})"
        )
    if end > start * (1 - MOVED):
        return (
            f"the training loss stayed where it began ({start:.3g} to {end:.3g}): try another "
            f"learning rate (--lr {lr * 10:.1g} or {lr / 10:.1g}), and look whether targets belong "
            "to their rows"
        )
    if held_out > end * APART and held_out > 0 and end > 0:
        return (
            f"the training loss fell to {end:.3g}, but the held-out one is {held_out:.3g}: rows "
            "were learned by heart, so give more data, fewer --steps or --model.block.dropout 0.1, "
            "and look whether targets belong to their rows"
        )
    if end < before * (1 - FALLING):
        # it fell all the way, so that larger steps would have gone farther
        return (
            f"the training loss was still falling ({before:.3g} to {end:.3g}): try a higher "
            f"learning rate (--lr {lr * (10 if lr < FAST else 3):.1g}), and only then {LONGER}"
        )
    return (
        f"the training loss came to rest at {end:.3g}, as the learning rate did: {LONGER}, or take "
        f"a larger model (--width, --layers) or another learning rate (--lr {lr * 3:.1g})"
    )


def _luck(losses: Sequence[float], size: int) -> float:
    """The standard error of the difference of two means of so many losses, each of a batch of its
    own, as neighbours differ."""
    steps = [(b - a) ** 2 for a, b in itertools.pairwise(losses)]
    return math.sqrt(mean(steps) / size)


def _falls(curve: Curve) -> bool:
    """True if no evaluation was better than the last of several."""
    held_out = [float(row["evaluation"]["loss"]) for row in curve["evaluations"]]
    return len(held_out) > 1 and held_out[-1] <= min(held_out)
