"""Policies: a task that is half a guess without memory is solved with one."""

from __future__ import annotations

from typing import Any

from everyformer.core.tasks import POLICY
from everyformer.data.config import DataConfig
from everyformer.data.load import load_dataset
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import bars
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


@experiment(
    "where a cue is seen at the start alone, a policy with GRU gates and a memory of segments "
    "succeeds in 95% of the episodes, and the same one without memory in about half of them",
    members=("gtrxl",),
    minutes=4,
)
def proof_of_memory(study: Study) -> Outcome:
    """The memory track, learned by proximal policy optimisation: the share of episodes that end at
    the good end, after equal steps of the environment."""
    source = DataConfig(env=TRACK, env_number=NUMBER)
    data = load_dataset(source, POLICY)
    for arm in study.each(ARMS):
        member, options = ARMS[arm]
        sizes = {"width": 32, "layers": 1, "heads": 4, "policy": TURN, **options}
        model = create_model(member, POLICY, **data.model_options, **sizes)
        assert isinstance(model, PolicyModel)
        study.train(
            model, data, UPDATES, batch=NUMBER, lr=1e-3, schedule="linear", warmup=0.0,
            weight_decay=0.0, clip=0.5, evaluate_sequences=1, threads=1, device="cpu",
        )  # fmt: skip
        found = play_policy(model, EnvironmentConfig(TRACK), study.steps(EPISODES))
        assert found.success is not None
        study.keep(arm, found.success, "succeeds in {:.0%}")
    share = study.means()
    steps = UPDATES // 16 * NUMBER * TURN["horizon"]
    sentence = (
        f"After {steps:,} steps of the environment GTrXL goes to the good end in "
        f"{share['gtrxl']:.0%} of the episodes, without memory in {share['without memory']:.0%}, "
        "which is a guess."
    )
    heights = {name: 100 * success for name, success in share.items()}
    figure = bars(heights, size=(4, 3), ylabel="episodes that succeed (%)")
    holds = share["gtrxl"] >= 0.95 and abs(share["without memory"] - 0.5) < CHANCE
    return Outcome(study.numbers, holds, sentence, {"success": figure})
