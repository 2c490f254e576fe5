"""Decision Transformer: shorter paths on a graph than the walks in the data, joined from pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.data.config import DataConfig
from everyformer.data.episodes import EpisodeDataset, episode_dataset
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import bars
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.rl.build import EnvironmentConfig, make_environment
from everyformer.rl.collection import collect
from everyformer.rl.recipes import recipe
from everyformer.rl.trajectories import Trajectories

WALKS, STEPS, UPDATES, BATCH = 300, 10, 1500, 64
"""walks of at most so many steps; updates of so many windows each"""
SIZES: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4, "dropout": 0.0}
ARMS: dict[str, tuple[str, float | None]] = {
    "decision-transformer": ("decision-transformer", None),
    "no-return": ("no-return", None),
    "bc": ("bc", None),
    "percent-bc": ("bc", 0.1),
}
MARGIN = 0.1
BEST = "the data's best"


@experiment(
    "on random graphs, of which it has seen random walks alone, a Decision Transformer that is "
    "asked for the shortest path finds it from more nodes than from which the data hold a walk "
    "that short, and than behaviour cloning or the same layers without returns find it, each by a "
    "tenth of the nodes; cloning of the best tenth of the walks is told beside it",
    members=("decision-transformer",),
    minutes=12,
)
def stitching(study: Study) -> Outcome:
    """The share of a graph's nodes from which the shortest path to the goal is taken, over graphs;
    in the data, the share from which some walk is a shortest path."""
    study.order([BEST, *ARMS])
    for seed in study.seeds():
        graph = EnvironmentConfig("everyformer/GraphPath-v0", (), {"graph": seed, "steps": STEPS})
        walks = collect(graph, recipe("random", graph), WALKS, seed)
        environment = make_environment(graph).unwrapped
        study.keep(BEST, in_the_data(walks, environment), "is {:.0%}")
        for arm in study.arms(ARMS):
            member, best = ARMS[arm]
            config = DataConfig(context=STEPS, best=best, seed=seed)
            data = episode_dataset(walks, config, "decision", "walks")
            model = create_model(member, data.task, **data.model_options, **SIZES)
            study.train(model, data, UPDATES, batch=BATCH, lr=1e-3, threads=1, device="cpu")
            study.keep(arm, shortest(model, data, environment), "finds {:.0%}")
    found = study.means()
    asked = found["decision-transformer"]
    others = [found[name] for name in (BEST, "no-return", "bc")]
    sentence = (
        f"From {asked:.0%} of the nodes the Decision Transformer takes a shortest path, where "
        f"{WALKS} random walks hold one for {found[BEST]:.0%}; behaviour cloning "
        f"takes one from {found['bc']:.0%}, of the best tenth from {found['percent-bc']:.0%}, and "
        f"the same layers without returns from {found['no-return']:.0%}."
    )
    heights = {name: 100 * share for name, share in found.items()}
    figure = bars(heights, size=(7, 3), ylabel="nodes with a shortest path (%)")
    holds = asked > max(others) + MARGIN
    return Outcome(study.numbers, holds, sentence, {"share": figure})


def in_the_data(walks: Trajectories, environment: Any) -> float:
    """The share of nodes from which some walk of the data is a shortest path to the goal."""
    best = {
        int(walk.observations[0]) for walk in walks.episodes
        if walk.terminations[-1]
        and len(walk) == environment.distances[int(walk.observations[0])]
    }  # fmt: skip
    return len(best) / (len(environment.joined) - 1)


@torch.no_grad()
def shortest(model: Model, data: EpisodeDataset, environment: Any) -> float:
    """The share of nodes from which the model, asked for minus the distance, takes a shortest path;
    of the neighbours of the node where it is, it goes to the likeliest."""
    distances, joined = environment.distances, torch.from_numpy(environment.joined)
    starts = np.flatnonzero(distances > 0)
    rows, at = len(starts), torch.from_numpy(starts)
    goal = int(np.flatnonzero(distances == 0)[0])
    states = torch.zeros(rows, STEPS, dtype=torch.long)
    actions, keep = torch.zeros_like(states), torch.zeros_like(states, dtype=torch.bool)
    wanted = -torch.from_numpy(distances[starts]).float()
    arrived = torch.full((rows,), STEPS + 1)
    for step in range(STEPS):
        states[:, step], keep[:, step] = at, True
        logits = _next(model, step, states, wanted, actions, keep)
        at = logits.masked_fill(~joined[at], -torch.inf).argmax(1)
        actions[:, step] = at
        arrived = torch.where((at == goal) & (arrived > STEPS), step + 1, arrived)
    return float((arrived == torch.from_numpy(distances[starts])).double().mean())


def _next(
    model: Model, step: int, states: Tensor, wanted: Tensor, actions: Tensor, keep: Tensor
) -> Tensor:
    """Logits of the action of ``step``, every step before having cost 1."""
    times = torch.arange(states.shape[1]).expand_as(states)
    options: dict[str, Any] = {"returns": wanted[:, None] + times, "actions": actions}
    # what is behind this step is not looked at
    out = model(states, mask=Mask(keep=keep), timesteps=times, **options)
    return out.logits[:, step]
