"""Where tokens of a depth-adaptive model leave: pointers again, some easy and some hard.

The task is that of `everyformer.experiments.halting`: a query of k hops needs about k + 1 layers,
so one layer for all is too deep for some and not deep enough for others. Who decides is learned
with the layers. Queries stand beside one another without anything in common, so the oracle's kernel
is left out (sigma = 0).

Source: Elbayad et al. 2019, arXiv 1910.10073.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from everyformer.core.trace import trace
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import panels
from everyformer.experiments.halting import HOPS, NODES, Chaser, chases
from everyformer.genes.depth._exits import leaving_at, set_threshold

LAYERS = 6
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
BETTER, EARLIER = 0.05, 0.5
DECIDES = {"sigma": 0.0, "penalty": 0.02, "alpha": 1.0}
ARMS = ("aligned", "mixed")


class Found(NamedTuple):
    """Of queries."""

    right: float
    depth: float
    by_hops: list[float]
    """mean layer of those of 1 .. 4 hops"""


@experiment(
    f"with learned exits over {BETTER:.0%} more queries are answered than where all tokens leave "
    f"at one layer, at the same depth on average, and queries of 1 hop leave over {EARLIER:g} "
    f"layers before those of {HOPS}",
    members=("depth-adaptive",),
    minutes=10,
)
def exits(study: Study) -> Outcome:
    """Two models, of aligned and of mixed training; each at every layer, and by who decides."""
    for _ in study.seeds():
        for arm in study.arms(ARMS):
            model = leaver(training=arm)
            study.fit(model, chases, 2400)
            for n in range(1, LAYERS + 1):
                study.keep(f"{arm}, all at {n}: right", measured(model, study.seed, n).right)
            for threshold in THRESHOLDS:
                set_threshold(model, threshold)
                found = measured(model, study.seed)
                study.keep(f"{arm}, chi > {threshold:g}: right", found.right)
                study.keep(f"{arm}, chi > {threshold:g}: layers", found.depth)
                if threshold == 0.5:
                    for hops, depth in enumerate(found.by_hops, 1):
                        study.keep(f"{arm}, hops {hops}: layers", depth)
        study.say(study.latest(".2f"))
    at = {arm: [study.mean(f"{arm}, all at {n}: right") for n in range(1, LAYERS + 1)]
          for arm in ARMS}  # fmt: skip
    decided = {
        arm: [(study.mean(f"{arm}, chi > {t:g}: layers"), study.mean(f"{arm}, chi > {t:g}: right"))
              for t in THRESHOLDS]
        for arm in ARMS
    }  # fmt: skip
    depth, right = decided["aligned"][THRESHOLDS.index(0.5)]
    same = float(np.interp(depth, np.arange(1, LAYERS + 1), at["aligned"]))
    leave = [study.mean(f"aligned, hops {k}: layers") for k in range(1, HOPS + 1)]
    sentence = (
        f"Aligned, with chi > 0.5, {right:.1%} of the queries are answered after {depth:.2f} of "
        f"{LAYERS} layers on average; where all leave at one layer {same:.1%} at that depth (drawn "
        f"between two layers) and {at['aligned'][-1]:.1%} at the last. Queries of 1 to {HOPS} hops "
        f"leave after {', '.join(f'{one:.2f}' for one in leave)} layers. Mixed training answers "
        f"{decided['mixed'][THRESHOLDS.index(0.5)][1]:.1%} after "
        f"{decided['mixed'][THRESHOLDS.index(0.5)][0]:.2f} layers, {at['mixed'][-1]:.1%} at the "
        "last."
    )
    figure, axes = panels(len(ARMS), size=(7.5, 3))
    for axis, arm in zip(axes, ARMS, strict=True):
        axis.plot(range(1, LAYERS + 1), at[arm], marker="o", label="all at one layer")
        axis.plot(*zip(*decided[arm], strict=True), marker="s", label="chi > 0.1 ... 0.9")
        axis.set(title=arm, xlabel="layers on average", ylabel="queries answered", ylim=(0, 1.02))
        axis.legend(loc="lower right")
    holds = right - same > BETTER and leave[-1] - leave[0] > EARLIER
    return Outcome(study.numbers, holds, sentence, {"pareto": figure})


def leaver(**depth: Any) -> Chaser:
    """A model of six layers without positions of its own beside the nodes'."""
    return Chaser("depth-adaptive", layers=LAYERS, depth_options={**DECIDES, **depth})


@torch.no_grad()
def measured(model: Chaser, seed: int, n: int | None = None) -> Found:
    """Of fresh queries; ``n``: all leave at this layer, else by what the model decides."""
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    batches = [chases(generator) for _ in range(8)]
    pairs, targets = (torch.cat(parts, -2) for parts in zip(*batches, strict=True))
    with nullcontext() if n is None else leaving_at(model, n), trace(model) as seen:
        found = model(pairs).logits.argmax(-1)
    asked = targets != -100
    [left] = seen.find("exits").values()
    hops: Tensor = pairs[1][asked] - NODES + 1
    layers = left[asked].float()
    by_hops = [float(layers[hops == k].mean()) for k in range(1, HOPS + 1)]
    right = float((found == targets)[asked].float().mean())
    return Found(right, float(layers.mean()), by_hops)
