"""How long tokens of a Universal Transformer run: chasing pointers, 1 to 4 hops.

A text is a table of 6 nodes in which each points to another, then queries: a node, and how many
hops to go from it. A layer can look one hop up, so a query of k hops needs about k steps.

Halting learned from the start stops after one or two steps, which is right for one hop, and stays
there (seen with b of -3 and of -1); so layers learn at a fixed number of steps first, and then to
halt.

Source: Dehghani et al. 2018, arXiv 1807.03819; Graves 2016, arXiv 1603.08983, section 3.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.core.trace import trace
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import panels, plot
from everyformer.models.build import create_model

NODES, HOPS, QUERIES, ROWS = 6, 4, 8, 64
STEPS = 6
COSTS = (0.01, 0.05, 0.2)
"""values of tau"""
GROWTH, FALL, RIGHT = 0.5, 0.5, 0.95


class Chaser(nn.Module):
    """A causal model that reads pairs: a node and what it points to, or the hops to go from it."""

    def __init__(self, member: str, **options: Any) -> None:
        super().__init__()
        width = 64
        self.model = create_model(
            member, width=width, heads=2, vocabulary=NODES, max_length=NODES + QUERIES,
            dropout=0.0, embedding_dropout=0.0, tie=False, **options,
        )  # fmt: skip
        self.first, self.second = nn.Embedding(NODES, width), nn.Embedding(NODES + HOPS, width)

    def forward(self, pairs: Tensor, targets: Tensor | None = None) -> ModelOutput:
        """Of pairs (2, B, L)."""
        x = self.first(pairs[0]) + self.second(pairs[1])
        out: ModelOutput = self.model(pairs[0], targets=targets, embeddings=x)
        return out


@experiment(
    f"a token's steps grow with the hops that it has to go, by over {GROWTH:g} from 1 to {HOPS} at "
    f"tau = {COSTS[-1]:g}, and fall with tau, by over {FALL:g} from {COSTS[0]:g} to "
    f"{COSTS[-1]:g}, while over {RIGHT:.0%} of the queries are answered",
    members=("universal",),
    minutes=10,
)
def halting(study: Study) -> Outcome:
    """Layers trained at 6 fixed steps, then with halting at three values of tau."""
    for _ in study.seeds():
        fixed = halts(halting="none")
        study.fit(fixed, chases, 1800)
        study.keep("fixed steps: right", steps_and_right(fixed, study.seed)[1])
        for tau in study.arms(COSTS):
            model = halts(tau=tau, halting_bias=-3.0)
            model.load_state_dict(fixed.state_dict(), strict=False)
            study.fit(model, chases, 800, lr=2e-3)
            steps, right = steps_and_right(model, study.seed)
            for hops, number in enumerate(steps, 1):
                study.keep(f"tau {tau:g}, hops {hops}: steps", number)
            study.keep(f"tau {tau:g}: right", right)
        study.say(study.latest(".2f"))
    by_hops = {
        tau: [study.mean(f"tau {tau:g}, hops {k}: steps") for k in range(1, HOPS + 1)]
        for tau in COSTS
    }
    every = [sum(steps) / HOPS for steps in by_hops.values()]
    right = min(study.mean(f"tau {tau:g}: right") for tau in COSTS)
    dear = by_hops[COSTS[-1]]
    rises = all(a < b for a, b in itertools.pairwise(dear)) and dear[-1] - dear[0] > GROWTH
    falls = all(a > b for a, b in itertools.pairwise(every)) and every[0] - every[-1] > FALL
    sentence = (
        f"At tau = {COSTS[-1]:g} queries of 1 to {HOPS} hops take "
        f"{', '.join(f'{steps:.2f}' for steps in dear)} of {STEPS} steps. Over all queries "
        f"{', '.join(f'{steps:.2f}' for steps in every)} at tau = "
        f"{', '.join(f'{tau:g}' for tau in COSTS)}; at worst {right:.1%} are answered, "
        f"{study.mean('fixed steps: right'):.1%} with all steps."
    )
    figure, [axis] = panels(size=(4.5, 3))
    curves = {
        f"tau = {tau:g}": [
            [study.numbers[f"tau {tau:g}, hops {k}: steps"][n] for k in range(1, HOPS + 1)]
            for n in range(len(study.numbers["fixed steps: right"]))
        ]
        for tau in COSTS
    }
    plot(axis, curves, range(1, HOPS + 1), ticks=True, xlabel="hops", ylabel="steps of a query")
    return Outcome(study.numbers, rises and falls and right > RIGHT, sentence, {"hops": figure})


def halts(**depth: Any) -> Chaser:
    """One whose steps are decided by ``depth``, options of universal."""
    return Chaser("universal", depth_options={"steps": STEPS, "order": "none", **depth})


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
def steps_and_right(model: nn.Module, seed: int) -> tuple[list[float], float]:
    """Mean steps of queries by hops, none without halting, and the share that is answered."""
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    batches = [chases(generator) for _ in range(8)]
    pairs, targets = (torch.cat(parts, -2) for parts in zip(*batches, strict=True))
    with trace(model) as seen:
        found = model(pairs).logits.argmax(-1)
    asked = targets != -100
    hops = pairs[1][asked] - NODES + 1
    steps = [
        float(taken[asked][hops == k].float().mean())
        for taken in seen.find("halting").values()
        for k in range(1, HOPS + 1)
    ]
    return steps, float((found == targets)[asked].float().mean())
