"""GTrXL: how like its input an output is at the start, and policies: a task that is half a guess
without memory, and which wirings of the same layers learn it at which learning rates."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from everyformer.core.errors import DivergedError
from everyformer.core.tasks import POLICY
from everyformer.experiments.figures import bars, lines
from everyformer.experiments.measures import load, mean
from everyformer.experiments.study import Outcome, Study, experiment
from everyformer.models.body import create_body
from everyformer.models.build import create_model
from everyformer.models.policy import PolicyModel
from everyformer.rl.build import EnvironmentConfig
from everyformer.training.returns import play_policy

GATES = ("gru", "output", "highway", "sigtanh")
BIASES = (0.0, 1.0, 2.0, 3.0, 4.0)
MEASURED = ("gru, b_g = 0", "gru, b_g = 2", "no gate (TrXL-I)", "post-norm")
"""arms whose gradients are recorded"""


@experiment(
    "in twelve layers at the start over 90% of an output's gradient is its own token's, with GRU "
    "gates whose biases are 2 as without gates, a tenth more than in post-norm layers; and with "
    "every gate that has a bias the output is the more like the input the larger that is, from 1 "
    "on",
    members=("gtrxl",),
    minutes=0.3,
)
def near_identity(study: Study) -> Outcome:
    """Twelve untrained layers: cosine of output and input, and whose token an output's gradient
    belongs to."""
    arms: dict[str, dict[str, Any]] = {
        f"{gate}, b_g = {bias:g}": {"gate": gate, "gate_bias": bias}
        for gate, bias in itertools.product(GATES, BIASES)
    }
    arms |= {"no gate (TrXL-I)": {"gate": "residual"}, "post-norm": {"wiring": "post"}}
    study.order([*arms, *(f"{arm}, own token" for arm in MEASURED)])
    for arm, options in study.each(arms.items()):
        body = create_body("gtrxl", width=64, layers=12, heads=4, **options)
        x = torch.randn(4, 32, 64).requires_grad_()
        y, _ = body(x)
        study.keep(arm, float(F.cosine_similarity(x, y, dim=-1).mean().detach()))
        (gradient,) = torch.autograd.grad((y[:, -1] @ torch.randn(64)).sum(), x)
        if arm in MEASURED:
            share = gradient[:, -1].square().sum() / gradient.square().sum()
            study.keep(f"{arm}, own token", float(share))
    sentence = (
        "Twelve layers at the start: an output's own token has [gru, b_g = 2, own token|.0%] of "
        "its gradient with GRU gates and b_g = 2, and [no gate (TrXL-I), own token|.0%] without "
        "gates (post-norm: [post-norm, own token|.0%], b_g = 0: [gru, b_g = 0, own token|.0%]). "
        "That is not the identity: output and input have a cosine of [gru, b_g = 2|.2f] (no gates: "
        "[no gate (TrXL-I)|.2f], post-norm: [post-norm|.2f]), with b_g = 4 of [gru, b_g = 4|.2f]; "
        "the gate sigtanh is the nearest to it at 2, [sigtanh, b_g = 2|.2f]."
    )
    curves = {gate: study.series(gate + ", b_g = {:g}", BIASES) for gate in GATES}
    rising = all(a < b for values in curves.values() for a, b in itertools.pairwise(values[1:]))
    _, gru, bare, post = study.series("{}, own token", MEASURED)
    labels = "b_g at the start", "cosine of output and input"
    figure = lines(curves, BIASES, labels, size=(4.5, 3))
    holds = min(gru, bare) > 0.9 and gru - post > 0.1 and rising
    return study.outcome(holds, sentence, bias=figure)


TRACK, NUMBER, UPDATES, FEWER = "everyformer/MemoryTrack-v0", 16, 640, 320
"""environment, how many side by side; steps of the optimiser, of which a turn has 16, of the
policies with and without memory, and of the wirings"""
TURN: dict[str, Any] = {"horizon": 64, "segment": 16}
WIRINGS: dict[str, dict[str, Any]] = {
    "GRU gates": {},
    "no gates (TrXL-I)": {"gate": "residual"},
    "post-norm (TrXL)": {"wiring": "post"},
}
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
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
    for arm, slots in study.each((("gtrxl", 16), ("without memory", 0))):
        share = success(study, UPDATES, 1e-3, layers=1, slots=slots)
        study.keep(arm, share, "succeeds in {:.0%}")
    sentence = (
        f"After {turns(UPDATES):,} steps of the environment GTrXL goes to the good end in "
        "[gtrxl|.0%] of the episodes, without memory in [without memory|.0%], which is a guess."
    )
    m = study.means()
    percent = {name: 100 * share for name, share in m.items()}
    holds = m["gtrxl"] >= 0.95 and abs(m["without memory"] - 0.5) < 0.15
    return study.outcome(holds, sentence, success=bars(percent, ylabel="episodes that succeed (%)"))


@experiment(
    f"of runs over learning rates and seeds over {MARGIN:.0%} more learn the memory track with GRU "
    "gates than as post-norm layers, and no fewer than without gates",
    members=("gtrxl",),
    minutes=15,
)
def learning_rates(study: Study) -> Outcome:
    """Three wirings of the same layers at four learning rates: the share of runs that learn.

    Budget, depth and rates were chosen with a seed that is not among the recorded ones.
    """
    for name, rate in study.each([*itertools.product(WIRINGS, RATES)]):
        share = success(study, FEWER, rate, layers=4, slots=16, **WIRINGS[name])
        study.keep(f"{name}, {rate:g}", share, "succeeds in {:.0%}")
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
    labels = "learning rate", "runs that learn (%)"
    figure = lines(percent, RATES, labels, xscale="log", ticks=True, ylim=(-5, 105))
    return study.outcome(gru - post > MARGIN and gru >= bare, sentence, learnt=figure)


def success(study: Study, updates: int, lr: float, **options: Any) -> float:
    """The share of episodes that a policy ends at the good end once it is trained; 0 where that
    diverged."""
    data = load(POLICY, env=TRACK, env_number=NUMBER)
    sizes = {"width": 32, "heads": 4, "policy": TURN, **options}
    model = create_model("gtrxl", POLICY, **data.model_options, **sizes)
    assert isinstance(model, PolicyModel)
    try:
        study.train(
            model, data, updates, batch=NUMBER, lr=lr, schedule="linear", warmup=0.0,
            weight_decay=0.0, clip=0.5, evaluate_sequences=1, threads=1, device="cpu",
        )  # fmt: skip
    except DivergedError:
        return 0.0
    share = play_policy(model, EnvironmentConfig(TRACK), study.steps(100)).success
    assert share is not None
    return share


def learnt(successes: Sequence[float]) -> float:
    """The share of runs that have."""
    return mean([float(value >= LEARNT) for value in successes])


def turns(updates: int) -> int:
    """Steps of the environment that so many of the optimiser learn from."""
    return updates // 16 * NUMBER * int(TURN["horizon"])
