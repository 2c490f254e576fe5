"""`everyformer collect ENV --policy POLICY --out DATA`: episodes of an environment as data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tyro

from everyformer.cli.console import emit, facts
from everyformer.cli.parsing import VerbOptions, parse
from everyformer.cli.playing import check_playing, played_by, take_environment
from everyformer.core.bounds import Count, Real, Seed, Share
from everyformer.core.errors import ConfigError
from everyformer.core.wording import listed
from everyformer.generation.config import PlayConfig
from everyformer.system.files import expanded
from everyformer.system.pulse import doing

if TYPE_CHECKING:
    from everyformer.rl.build import EnvironmentConfig
    from everyformer.rl.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True)
class CollectOptions(VerbOptions):
    """The words of `everyformer collect`."""

    environment: tyro.conf.Positional[str]
    """as registered with gymnasium (CartPole-v1, everyformer/TMaze-v0); with --env.length 20 or the
    like, an option of its own, with --env.mask 1 3 what is hidden of its observations; its episodes
    end after --env.max-episode-steps (default: its own limit, or 10000 where it has none)"""
    policy: str = "random"
    """who acts: random, medium, expert or mixed, which need no training, or a run that acts"""
    noise: Share | None = None
    """of policy expert: the share of its actions that random ones take the place of"""
    target: Real | None = None
    """of a run: the return that it is asked for (default: the best one of its data)"""
    episodes: Count = 100
    """how many are played"""
    seed: Seed = 0
    """from which the seed of each episode follows"""
    parallel: Count = 8
    """environments side by side, at most"""
    out: str = "episodes"
    """folder of the episodes, a data set of Minari's; or minari:ID among its own"""
    json: bool = False
    """machine output"""


def run(words: Sequence[str]) -> int:
    """Play, write, and say what came of it."""
    of_environment, rest = take_environment(words)
    options = parse(
        CollectOptions,
        rest,
        verb="collect",
        about="Play episodes of an environment and keep them as data, from which members learn.",
        examples=(
            "everyformer collect CartPole-v1 --policy mixed --env.mask 1 3 --out poles",
            "everyformer collect everyformer/KeyToDoor-v0 --episodes 1000 --out keys",
        ),
    )
    from everyformer.rl.build import EnvironmentConfig
    from everyformer.rl.minari_sets import require_free, write_trajectories

    require_free(options.out)
    mask = of_environment.pop("mask", ())
    environment = EnvironmentConfig(options.environment, tuple(mask), of_environment)
    made = _played(environment, options)
    folder = write_trajectories(made, options.out)
    stats = made.statistics
    values: dict[str, Any] = {
        "trajectories": str(folder),
        "environment": str(environment),
        "policy": made.recipe,
        "episodes": len(made),
        "steps": sum(len(episode) for episode in made.episodes),
        "return": stats.return_mean,
        "return_min": stats.return_min,
        "return_max": stats.return_max,
    }
    if made.success is not None:
        values["success"] = made.success
    if options.json:
        emit(values)
        return 0
    values["return"] = (
        f"{stats.return_mean:.4g} on average, {stats.return_min:.4g} to {stats.return_max:.4g}"
    )
    del values["return_min"], values["return_max"]
    source = shlex.quote(str(folder))
    values["next"] = f"everyformer train decision-transformer --data {source}"
    print(facts(values))
    return 0


def _played(environment: EnvironmentConfig, options: CollectOptions) -> Trajectories:
    """The episodes.

    Raises:
        ConfigError: no such policy, or options of another.
    """
    from everyformer.rl.collection import collect
    from everyformer.rl.recipes import TIERS, recipe

    what = f"playing {options.episodes:,} episodes of {environment}"
    if options.policy in TIERS:
        if options.target is not None:
            raise ConfigError(
                f"--target {options.target:g} asks a run for a return, but the policy "
                f"'{options.policy}' is none: leave it out"
            )
        policy = recipe(options.policy, environment, options.noise)
        with doing(what):
            return collect(
                environment, policy, options.episodes, options.seed, parallel=options.parallel
            )
    if not expanded(options.policy).is_dir():
        raise ConfigError(
            f"--policy {options.policy} is neither {listed(list(TIERS), 'nor')} nor the directory "
            "of a run"
        )
    if options.noise is not None:
        raise ConfigError("--noise is of policy expert, not of a run: leave it out")
    from everyformer.cli.trained import open_run

    play = PlayConfig(
        env=environment.name,
        target=() if options.target is None else (options.target,),
        episodes=options.episodes,
        seed=options.seed,
        parallel=options.parallel,
    )
    trained = open_run(options.policy)
    check_playing(trained, play, environment.options)
    hidden = {**environment.options, "mask": list(environment.mask)}
    [(_, made)] = played_by(trained, play, hidden)
    return made
