"""Depth that adapts: chased pointers, and how long tokens run.

A text of pointers is a table of 6 nodes in which each points to another, then queries: a node, and
how many hops to go from it, 1 to 4. A layer can look one hop up, so a query of k hops needs about
k + 1 layers: one depth for all is too deep for some queries and not deep enough for others.

Sources: Dehghani et al. 2018, arXiv 1807.03819; Graves 2016, arXiv 1603.08983, section 3; Elbayad
et al. 2019, arXiv 1910.10073.
"""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.core.trace import trace
from everyformer.genes.depth.early_exits import leaving_at, set_threshold
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import mean, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

NODES, HOPS, QUERIES, ROWS = 6, 4, 8, 64
STEPS = 6
"""of the layer that is repeated, and layers of the models with others"""
COSTS = (0.01, 0.05, 0.2)
"""values of tau"""
GROWTH, FALL, RIGHT = 0.5, 0.5, 0.95
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
BETTER, EARLIER = 0.05, 0.5


class Chaser(nn.Module):
    """A causal model that reads pairs: a node and its pointer, or the hops to go from it."""

    def __init__(self, member: str, **options: Any) -> None:
        super().__init__()
        width = 64
        self.model = create_model(
            member, width=width, heads=2, vocabulary=NODES, max_length=NODES + QUERIES,
            dropout=0.0, embedding_dropout=0.0, tie=False, **options,
        )  # fmt: skip
        self.first, self.second = nn.Embedding(NODES, width), nn.Embedding(NODES + HOPS, width)

    def forward(self, pairs: Tensor, targets: Tensor | None = None) -> ModelOutput:
        """Logits and loss of pairs (2, B, L)."""
        x = self.first(pairs[0]) + self.second(pairs[1])
        out: ModelOutput = self.model(pairs[0], targets=targets, embeddings=x)
        return out


def chases(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs (2, B, L) and targets: the node that each query ends at."""
    pointers = torch.rand(ROWS, NODES, generator=generator).argsort(1)
    start = torch.randint(NODES, (ROWS, QUERIES), generator=generator)
    hops = torch.randint(1, HOPS + 1, (ROWS, QUERIES), generator=generator)
    end = start
    for hop in range(HOPS):
        end = torch.where(hops > hop, pointers.gather(1, end), end)
    nodes = torch.arange(NODES).expand(ROWS, -1)
    first, second = torch.cat((nodes, start), 1), torch.cat((pointers, NODES + hops - 1), 1)
    return torch.stack((first, second)), torch.cat((torch.full_like(nodes, -100), end), 1)


@torch.no_grad()
def measured(model: Chaser, seed: int, record: str) -> tuple[float, list[float], float]:
    """Share of fresh queries that is answered, their mean steps by hops, and over all of them.

    Args:
        record: name of the steps in a trace; [] and 0 where there are none.
    """
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    batches = [chases(generator) for _ in range(8)]
    pairs, targets = (torch.cat(parts, -2) for parts in zip(*batches, strict=True))
    with trace(model) as traced:
        right = scored_accuracy(model, pairs, targets)
    queries = targets != -100
    hops = pairs[1][queries] - NODES + 1
    for taken in traced.find(record).values():
        steps = taken[queries].float()
        return (
            right,
            [float(steps[hops == k].mean()) for k in range(1, HOPS + 1)],
            float(steps.mean()),
        )
    return right, [], 0.0


@experiment(
    f"a token's steps grow with the hops that it has to go, by over {GROWTH:g} from 1 to {HOPS} at "
    f"tau = {COSTS[-1]:g}, and fall with tau, by over {FALL:g} from {COSTS[0]:g} to "
    f"{COSTS[-1]:g}, while over {RIGHT:.0%} of the queries are answered",
    members=("universal",),
    minutes=10,
)
def halting(study: Study) -> Outcome:
    """Layers trained at 6 fixed steps, then with halting at three values of tau.

    Halting learned from the start stops after one or two steps, which is right for one hop, and
    stays there (seen with b of -3 and of -1); so layers learn at a fixed number of steps first.
    """
    common = {"steps": STEPS, "order": "none"}
    for _ in study.seeds():
        fixed = Chaser("universal", depth_options={"halting": "none", **common})
        study.fit(fixed, chases, 1800)
        study.keep("fixed steps: right", measured(fixed, study.seed, "halting")[0])
        for tau in study.arms(COSTS):
            model = Chaser("universal", depth_options={"tau": tau, "halting_bias": -3.0, **common})
            model.load_state_dict(fixed.state_dict(), strict=False)
            study.fit(model, chases, 800, lr=2e-3)
            right, steps, _ = measured(model, study.seed, "halting")
            for k, number in enumerate(steps, 1):
                study.keep(f"tau {tau:g}, hops {k}: steps", number)
            study.keep(f"tau {tau:g}: right", right)
        study.say(study.latest(".2f"))
    hops = range(1, HOPS + 1)
    by_hops = [study.series(f"tau {tau:g}, hops {{}}: steps", hops) for tau in COSTS]
    every = [mean(steps) for steps in by_hops]
    worst = min(study.series("tau {:g}: right", COSTS))
    dear = by_hops[-1]
    sentence = (
        f"At tau = {COSTS[-1]:g} queries of 1 to {HOPS} hops take "
        f"{', '.join(f'{steps:.2f}' for steps in dear)} of {STEPS} steps. Over all queries "
        f"{', '.join(f'{steps:.2f}' for steps in every)} at tau = "
        f"{', '.join(f'{tau:g}' for tau in COSTS)}; at worst {worst:.1%} are answered, "
        "[fixed steps: right|.1%] with all steps."
    )
    rises = all(a < b for a, b in itertools.pairwise(dear)) and dear[-1] - dear[0] > GROWTH
    falls = all(a > b for a, b in itertools.pairwise(every)) and every[0] - every[-1] > FALL
    curves = {
        f"tau = {tau:g}": study.curves(f"tau {tau:g}, hops {{}}: steps", hops) for tau in COSTS
    }
    figure = Lines(curves, hops, ("hops", "steps of a query"))
    return study.outcome(rises and falls and worst > RIGHT, sentence, hops=figure)


@experiment(
    f"with learned exits over {BETTER:.0%} more queries are answered than where all tokens leave "
    f"at one layer, at the same depth on average, and queries of 1 hop leave over {EARLIER:g} "
    f"layers before those of {HOPS}",
    members=("depth-adaptive",),
    minutes=10,
)
def exits(study: Study) -> Outcome:
    """Two models, of aligned and of mixed training; each at every layer, and by its own decision.

    The decision is learned with the layers. Queries side by side have nothing in common, so the
    oracle's kernel is left out (sigma = 0).
    """
    arms, layers = ("aligned", "mixed"), range(1, STEPS + 1)
    options = {"sigma": 0.0, "penalty": 0.02, "alpha": 1.0}
    for _ in study.seeds():
        for arm in study.arms(arms):
            depth_options = {**options, "training": arm}
            model = Chaser("depth-adaptive", layers=STEPS, depth_options=depth_options)
            study.fit(model, chases, 2400)
            for n in layers:
                with leaving_at(model, n):
                    study.keep(f"{arm}, all at {n}: right", measured(model, study.seed, "exits")[0])
            for threshold in THRESHOLDS:
                set_threshold(model, threshold)
                right, by_hops, depth = measured(model, study.seed, "exits")
                study.keep(f"{arm}, chi > {threshold:g}: right", right)
                study.keep(f"{arm}, chi > {threshold:g}: layers", depth)
                if threshold == 0.5:
                    for hops, number in enumerate(by_hops, 1):
                        study.keep(f"{arm}, hops {hops}: layers", number)
        study.say(study.latest(".2f"))
    at = {arm: study.series(arm + ", all at {}: right", layers) for arm in arms}
    m = study.means()
    depth, right = m["aligned, chi > 0.5: layers"], m["aligned, chi > 0.5: right"]
    same = float(np.interp(depth, layers, at["aligned"]))
    leave = study.series("aligned, hops {}: layers", range(1, HOPS + 1))
    sentence = (
        f"Aligned, with chi > 0.5, {right:.1%} of the queries are answered after {depth:.2f} of "
        f"{STEPS} layers on average; where all leave at one layer {same:.1%} at that depth (drawn "
        f"between two layers) and {at['aligned'][-1]:.1%} at the last. Queries of 1 to {HOPS} hops "
        f"leave after {', '.join(f'{one:.2f}' for one in leave)} layers. Mixed training answers "
        "[mixed, chi > 0.5: right|.1%] after [mixed, chi > 0.5: layers|.2f] layers, "
        f"{at['mixed'][-1]:.1%} at the last."
    )
    figure = [
        Lines(
            {"all at one layer": at[arm],
             "chi > 0.1 ... 0.9": study.series(arm + ", chi > {:g}: right", THRESHOLDS)},
            {"all at one layer": layers,
             "chi > 0.1 ... 0.9": study.series(arm + ", chi > {:g}: layers", THRESHOLDS)},
            ("layers on average", "queries answered"), title=arm, limits=(0, 1.02),
        )
        for arm in arms
    ]  # fmt: skip
    holds = right - same > BETTER and leave[-1] - leave[0] > EARLIER
    return study.outcome(holds, sentence, pareto=figure)
