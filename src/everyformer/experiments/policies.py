"""Policies: a task that is half a guess without memory is solved with one, and which wirings of the
same layers learn it at which learning rates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from everyformer.core.errors import DivergedError
from everyformer.core.tasks import POLICY
from everyformer.data.config import DataConfig
from everyformer.data.load import load_dataset
from everyformer.experiments.base import Outcome, Study, experiment, mean
from everyformer.experiments.figures import bars, lines
from everyformer.models.build import create_model
from everyformer.models.policy import PolicyModel
from everyformer.rl.build import EnvironmentConfig
from everyformer.training.returns import play_policy

TRACK = "everyformer/MemoryTrack-v0"
NUMBER, UPDATES, EPISODES = 16, 640, 100
"""environments side by side; steps of the optimiser, of which a turn has 16; episodes that are
played in the end"""
TURN: dict[str, Any] = {"horizon": 64, "segment": 16}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gtrxl": ("gtrxl", {"slots": 16}),
    "without memory": ("gtrxl", {"slots": 0}),
}
CHANCE = 0.15
"""how far from a half the success may be that is called chance"""
WIRINGS: dict[str, dict[str, Any]] = {
    "GRU gates": {},
    "no gates (TrXL-I)": {"gate": "residual"},
    "post-norm (TrXL)": {"wiring": "post"},
}
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
LAYERS, FEWER = 4, 320
"""of the wirings, and steps of the optimiser that each has"""
LEARNT, MARGIN = 0.9, 0.15
"""success of a run that has learnt; by how much more of them do with GRU gates than post-norm"""


@experiment(
    "where a cue is seen at the start alone, a policy with GRU gates and a memory of segments "
    "succeeds in 95% of the episodes, and the same one without memory in about half of them",
    members=("gtrxl",),
    minutes=4,
)
def proof_of_memory(study: Study) -> Outcome:
    """The memory track, learned by proximal policy optimisation: the share of episodes that end at
    the good end, after equal steps of the environment."""
    for arm in study.each(ARMS):
        member, options = ARMS[arm]
        found = success(study, UPDATES, 1e-3, member, layers=1, **options)
        study.keep(arm, found, "succeeds in {:.0%}")
    share = study.means()
    sentence = (
        f"After {turns(UPDATES):,} steps of the environment GTrXL goes to the good end in "
        f"{share['gtrxl']:.0%} of the episodes, without memory in {share['without memory']:.0%}, "
        "which is a guess."
    )
    heights = {name: 100 * success for name, success in share.items()}
    figure = bars(heights, size=(4, 3), ylabel="episodes that succeed (%)")
    holds = share["gtrxl"] >= 0.95 and abs(share["without memory"] - 0.5) < CHANCE
    return Outcome(study.numbers, holds, sentence, {"success": figure})


@experiment(
    f"of runs over learning rates and seeds over {MARGIN:.0%} more learn the memory track with GRU "
    "gates than as post-norm layers, and no fewer than without gates",
    members=("gtrxl",),
    minutes=15,
)
def learning_rates(study: Study) -> Outcome:
    """Three wirings of the same layers at four learning rates: the share of runs that learn.

    Budget, depth and rates were found with a seed that is not among the recorded ones.
    """
    for name, rate in study.each([*itertools.product(WIRINGS, RATES)]):
        found = success(study, FEWER, rate, "gtrxl", layers=LAYERS, slots=16, **WIRINGS[name])
        study.keep(f"{name}, {rate:g}", found, "succeeds in {:.0%}")
    at = {name: [learnt(study.numbers[f"{name}, {rate:g}"]) for rate in RATES] for name in WIRINGS}
    gru, bare, post = (mean(shares) for shares in at.values())
    each = "; ".join(
        f"{name}: {', '.join(f'{share:.0%}' for share in shares)}" for name, shares in at.items()
    )
    sentence = (
        f"Of the runs over learning rates and seeds {gru:.0%} learn with GRU gates, {bare:.0%} "
        f"without gates and {post:.0%} as post-norm layers (success in at least {LEARNT:.0%} of "
        f"the episodes after {turns(FEWER):,} steps of the environment). At "
        f"{', '.join(f'{rate:g}' for rate in RATES)}: {each}."
    )
    percent = {name: [100 * share for share in shares] for name, shares in at.items()}
    figure = lines(
        percent, RATES, xscale="log", ticks=True, xlabel="learning rate",
        ylabel="runs that learn (%)", ylim=(-5, 105),
    )  # fmt: skip
    holds = gru - post > MARGIN and gru >= bare
    return Outcome(study.numbers, holds, sentence, {"learnt": figure})


def success(study: Study, updates: int, lr: float, member: str, **options: Any) -> float:
    """The share of episodes that a policy ends at the good end once it is trained; 0 where that
    diverged."""
    source = DataConfig(env=TRACK, env_number=NUMBER)
    data = load_dataset(source, POLICY)
    sizes = {"width": 32, "heads": 4, "policy": TURN, **options}
    model = create_model(member, POLICY, **data.model_options, **sizes)
    assert isinstance(model, PolicyModel)
    try:
        study.train(
            model, data, updates, batch=NUMBER, lr=lr, schedule="linear", warmup=0.0,
            weight_decay=0.0, clip=0.5, evaluate_sequences=1, threads=1, device="cpu",
        )  # fmt: skip
    except DivergedError:
        return 0.0
    found = play_policy(model, EnvironmentConfig(TRACK), study.steps(EPISODES))
    assert found.success is not None
    return found.success


def learnt(successes: Sequence[float]) -> float:
    """The share of runs that have."""
    return mean([float(value >= LEARNT) for value in successes])


def turns(updates: int) -> int:
    """Steps of the environment that so many of the optimiser learn from."""
    return updates // 16 * NUMBER * int(TURN["horizon"])
