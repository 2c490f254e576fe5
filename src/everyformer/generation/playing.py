"""Playing: episodes of a trained model in an environment."""

from __future__ import annotations

from collections.abc import Callable

from everyformer.core.errors import ConfigError
from everyformer.generation.acting import DecisionPolicy
from everyformer.generation.config import PlayConfig
from everyformer.models.decision import DecisionModel
from everyformer.models.policy import PolicyModel
from everyformer.rl.build import EnvironmentConfig, limit_of, make_environment, spaces_of
from everyformer.rl.collection import collect
from everyformer.rl.trajectories import Trajectories
from everyformer.training.returns import EPISODES, play_policy


def play(
    model: DecisionModel | PolicyModel,
    environment: EnvironmentConfig,
    target: float | None,
    options: PlayConfig,
    *,
    delayed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Trajectories:
    """Episodes of ``model``, asked for a return of ``target`` where it reads one.

    Raises:
        ConfigError: the environment's episodes may be longer than the model's table of timesteps.
        DataError: it is of another kind than the model's.
        Those of `everyformer.rl.make`.
    """
    count = options.episodes or EPISODES
    if isinstance(model, PolicyModel):
        return play_policy(
            model, environment, count, options.seed, temperature=options.temperature,
            parallel=options.parallel, progress=progress,
        )  # fmt: skip
    trial = make_environment(environment)
    spaces = spaces_of(trial, environment.name)
    trial.close()
    limit = limit_of(environment)
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
    return collect(
        environment, policy, count, options.seed, parallel=options.parallel, progress=progress
    )
