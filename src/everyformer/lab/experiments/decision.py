"""Decision Transformer where it acts: paths joined from pieces, and the return asked for."""

import itertools
from typing import Any, cast

import numpy as np
import torch

from everyformer.core.mask import Mask
from everyformer.data.config import DataConfig
from everyformer.data.episodes.kind import episode_dataset
from everyformer.data.episodes.trajectories import Trajectories
from everyformer.data.episodes.walks import GraphWalk
from everyformer.lab.experiments.figures import Bars, Lines
from everyformer.lab.experiments.measures import mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.lab.experiments.worlds import LIMIT, KeyToDoor, played, pole, poles
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.models.decision import DecisionModel

MEMBERS = ("decision-transformer",)
SIZES: dict[str, Any] = {"width": 64, "layers": 2, "dropout": 0.0}
ARMS: dict[str, tuple[str, float | None]] = {
    "decision-transformer": ("decision-transformer", None),
    "no-return": ("no-return", None),
    "bc": ("bc", None),
    "percent-bc": ("bc", 0.1),
}
"""member, and the best part of the episodes that it learns from"""
BATCH, PLAYED = 64, 40
"""windows of an update, episodes that are played for a mean"""

WALKS, STEPS = 300, 10
"""walks on a graph, of at most so many steps"""
BEST = "the data's best"

TARGETS = (25.0, 50.0, 100.0, 150.0, 200.0, 300.0)
"""the last is more than any episode of the data has"""


@experiment(
    "of random walks through three rooms, paid at the end of the last for a key in the first, a "
    "Decision Transformer that is asked for the reward learns to open the door in 30 of 100 "
    "episodes more than behaviour cloning and than the same layers without returns; cloning of the "
    "best tenth of the walks is told beside it",
    members=MEMBERS,
    minutes=6,
)
def key_to_door(study: Study) -> Outcome:
    """The share of episodes that open the door; in the data, of walks that do.

    Rooms have 2 x 2 cells. A first run, one seed of it, had 3 x 3 cells, six steps a room, 1,500
    walks and 900 updates at half the learning rate: there 12% were opened, where the data open 11%.
    Three more settings were tried on seed 0, which is among those recorded: the same with a short
    context opened 11%, 2 x 2 cells with longer rooms 37% when it was stopped, and these 91%.
    """
    study.order(["the data", *ARMS])
    rooms = KeyToDoor()
    for seed in study.seeds():
        walks = rooms.record(study.steps(2000), seed)
        study.keep("the data", mean(walks.returns.tolist()), "open {:.0%}")
        for arm in study.arms(ARMS):
            model = learnt(study, arm, walks, 1200, lr=2e-3, context=rooms.steps)
            target = 1.0 if arm == "decision-transformer" else None
            opened = played(model, target, [KeyToDoor() for _ in range(200)], 1000 + seed)
            study.keep(arm, opened, "opens {:.0%}")
    sentence = (
        "Asked for the reward, the Decision Transformer opens [decision-transformer|.0%] of the "
        "doors; random walks, which are its data, open [the data|.0%], behaviour cloning [bc|.0%], "
        "of the best tenth [percent-bc|.0%], and the same layers without returns [no-return|.0%]."
    )
    m = study.means()
    figure = Bars(study.numbers, "doors opened", top=1)
    holds = m["decision-transformer"] > max(m["the data"], m["no-return"], m["bc"]) + 0.3
    return study.outcome(holds, sentence, doors=figure)


@experiment(
    "on poles held up by policies from random to expert, what a Decision Transformer reaches "
    "rises with what it is asked for, from target to target, at least twofold up to the best of "
    "the data; asked for half as much again, it differs from that by less than a fifth",
    members=MEMBERS,
    minutes=3,
)
def asked_returns(study: Study) -> Outcome:
    """The mean return for every target, after training on mixed data."""
    for seed in study.seeds():
        model = learnt(study, "decision-transformer", poles(seed), 600)
        for target in TARGETS:
            worlds = [pole() for _ in range(PLAYED)]
            study.keep(f"{target:g}", played(model, target, worlds, 1000 + seed))
        study.say(f"reaches {study.latest('.0f')}")
    *within, beyond = study.series("{:g}", TARGETS)
    reaches = ", ".join(f"{value:.0f} for {target}" for target, value in study.means().items())
    sentence = (
        f"What is reached by what is asked for: {reaches}; no episode of the data has more than "
        f"{LIMIT}."
    )
    curves: Any = {"reached": study.curves("{:g}", TARGETS), "asked for": TARGETS}
    figure = Lines(curves, TARGETS, ("return asked for", "mean return reached"))
    rising = all(after > before for before, after in itertools.pairwise(within))
    best = within[-1]
    holds = rising and best > 2 * within[0] and abs(beyond - best) < 0.2 * best
    return study.outcome(holds, sentence, returns=figure)


def learnt(
    study: Study,
    arm: str,
    episodes: Trajectories,
    updates: int,
    *,
    lr: float = 1e-3,
    heads: int = 1,
    context: int = 10,
) -> DecisionModel:
    """A model of one of `ARMS` after so many updates on the episodes."""
    member, best = ARMS[arm]
    config = DataConfig(seed=study.seed, context=context, best=best)
    data = episode_dataset(episodes, config, "decision", "episodes")
    model = create_model(member, data.task, **data.model_options, heads=heads, **SIZES)
    study.train(model, data, updates, batch=BATCH, lr=lr, threads=1, device="cpu")
    return cast("DecisionModel", model)


@experiment(
    "on random graphs, of which it has seen random walks alone, a Decision Transformer that is "
    "asked for the shortest path finds it from more nodes than from which the data hold a walk "
    "that short, and than behaviour cloning or the same layers without returns find it, each by a "
    "tenth of the nodes; cloning of the best tenth of the walks is told beside it",
    members=MEMBERS,
    minutes=12,
)
def stitching(study: Study) -> Outcome:
    """The share of a graph's nodes from which the shortest path to the goal is taken, over graphs;
    in the data, the share from which some walk is a shortest path."""
    study.order([BEST, *ARMS])
    for seed in study.seeds():
        graph = GraphWalk(seed, steps=STEPS)
        walks = graph.record(WALKS, seed)
        study.keep(BEST, in_the_data(walks, graph), "is {:.0%}")
        for arm in study.arms(ARMS):
            model = learnt(study, arm, walks, 1500, heads=4, context=STEPS)
            study.keep(arm, shortest(model, graph), "finds {:.0%}")
    sentence = (
        "From [decision-transformer|.0%] of the nodes the Decision Transformer takes a shortest "
        f"path, where {WALKS} random walks hold one for [{BEST}|.0%]; behaviour cloning takes one "
        "from [bc|.0%], of the best tenth from [percent-bc|.0%], and the same layers without "
        "returns from [no-return|.0%]."
    )
    m = study.means()
    figure = Bars(study.numbers, "nodes with a shortest path")
    holds = m["decision-transformer"] > max(m[BEST], m["no-return"], m["bc"]) + 0.1
    return study.outcome(holds, sentence, share=figure)


def in_the_data(walks: Trajectories, graph: GraphWalk) -> float:
    """The share of nodes from which some walk of the data is a shortest path to the goal."""
    best = {
        int(walk.observations[0]) for walk in walks.episodes
        if walk.terminations[-1]
        and len(walk) == graph.distances[int(walk.observations[0])]
    }  # fmt: skip
    return len(best) / (len(graph.joined) - 1)


@torch.no_grad()
def shortest(model: Model, graph: GraphWalk) -> float:
    """The share of nodes from which the model, asked for minus the distance, takes a shortest path;
    of the neighbours of the node where it is, it goes to the likeliest."""
    distances, joined = graph.distances, torch.from_numpy(graph.joined)
    starts = np.flatnonzero(distances > 0)
    rows, at = len(starts), torch.from_numpy(starts)
    states = torch.zeros(rows, STEPS, dtype=torch.long)
    actions, keep = torch.zeros_like(states), torch.zeros_like(states, dtype=torch.bool)
    times = torch.arange(STEPS).expand_as(states)
    # every step costs 1
    returns = times - torch.from_numpy(distances[starts]).float()[:, None]
    arrived = torch.full((rows,), STEPS + 1)
    for step in range(STEPS):
        states[:, step], keep[:, step] = at, True
        options: dict[str, Any] = {"returns": returns, "actions": actions, "timesteps": times}
        logits = model(states, mask=Mask(padding_mask=keep), **options).logits[:, step]
        at = logits.masked_fill(~joined[at], -torch.inf).argmax(1)
        actions[:, step] = at
        arrived = torch.where((at == graph.goal) & (arrived > STEPS), step + 1, arrived)
    return float((arrived == torch.from_numpy(distances[starts])).double().mean())
