"""Playing: episodes of a trained model in an environment, and what they came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everyformer.core.errors import ConfigError
from everyformer.generation.acting import DecisionPolicy
from everyformer.generation.config import PlayConfig
from everyformer.models.decision import DecisionModel
from everyformer.rl.build import STEPS, EnvironmentConfig, make_environment, options_of, spaces_of
from everyformer.rl.collection import collect
from everyformer.rl.trajectories import Trajectories
from everyformer.training.intervals import ratio, wilson

EPISODES = 20
"""that are played where nothing is said"""
REFERENCE = "reference_returns"
"""the entry of an environment's ``metadata`` that holds the returns of random and of good play"""


def play(
    model: DecisionModel,
    environment: EnvironmentConfig,
    target: float | None,
    options: PlayConfig,
    *,
    delayed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectories:
    """Episodes of ``model``, asked for a return of ``target``.

    Raises:
        ConfigError: the environment's episodes may be longer than the model's table of timesteps.
        DataError: it is of another kind than the model's.
        Those of `everyformer.rl.make`.
    """
    trial = make_environment(environment)
    spaces = spaces_of(trial, environment.name)
    trial.close()
    limit = environment.options.get(STEPS, options_of(environment.name)[STEPS])
    if limit is not None and limit > model.config.timesteps:
        raise ConfigError(
            f"episodes of {environment.name} have up to {limit:,} steps, but the model knows "
            f"{model.config.timesteps:,} timesteps: give --env.max-episode-steps "
            f"{model.config.timesteps}, or train one with a larger --model.decision.table"
        )
    policy = DecisionPolicy(
        model, *spaces, target, delayed=delayed, temperature=options.temperature,
        rolling=options.rolling,
    )  # fmt: skip
    count = options.episodes or EPISODES
    return collect(
        environment, policy, count, options.seed, parallel=options.parallel, progress=progress
    )


def played(found: Trajectories) -> dict[str, Any]:
    """What some episodes came to: ``return`` and ``steps``, means over episodes with their normal
    95% intervals; ``success``, where it is told, with Wilson's; ``normalised``, the return as a
    share of the way from random to good play, where the environment says how they do."""
    values = {"return": found.returns, "steps": found.lengths.astype(float)}
    told: dict[str, Any] = {"episodes": len(found)}
    for name, each in values.items():
        n = float(len(each))
        mean, interval = ratio(n, n, n, each.sum(), np.square(each).sum(), each.sum())
        told |= {name: float(mean), f"{name}_interval": interval}
    if found.success is not None:
        told["success"] = found.success
        told["success_interval"] = wilson(found.success * len(found), len(found))
    ends = reference(found.environment)
    if ends is not None:
        low, high = ends
        told["normalised"] = (told["return"] - low) / (high - low)
        around = told["return_interval"]
        told["normalised_interval"] = around and [(end - low) / (high - low) for end in around]
    return told


def reference(environment: EnvironmentConfig | None) -> tuple[float, float] | None:
    """The mean returns of random and of good play, as the environment with its usual options says
    in its ``metadata``; None where it does not."""
    if environment is None or environment.options:
        return None
    trial = make_environment(environment)
    found = trial.metadata.get(REFERENCE)
    trial.close()
    return None if found is None else (float(found[0]), float(found[1]))
