"""Recipes: policies that need no training, in tiers that are defined by how much noise they have.

A tier is an expert (`everyformer.rl.experts`) of whose actions some are replaced by random ones:

    random   all of them
    medium   a share that the environment's record holds
    expert   none
    mixed    all, 3/4, half, 1/4 and none, episode by episode in turn

Data sets keep the sentence that describes the recipe, the noise and the seed of every episode. The
tiers are no others' of the same names: returns are comparable within one environment and recipe.
"""

from collections.abc import Callable

from everyformer.core.bounds import Share
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.wording import listed
from everyformer.rl.build import EnvironmentConfig, make_environment, spaces_of
from everyformer.rl.experts import EXPERTS, Expert
from everyformer.rl.policy import NoisyPolicy, uniform

LEVELS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""of noise, in turn, in the tier 'mixed'"""
RANDOM, EXPERT = "random", "expert"
"""the tier that any environment has, and the one whose noise may be chosen"""
TIERS: dict[str, Callable[[Expert], tuple[float, ...]]] = {
    RANDOM: lambda expert: (1.0,),
    "medium": lambda expert: (expert.medium,),
    EXPERT: lambda expert: (0.0,),
    "mixed": lambda expert: LEVELS,
}
"""noise, in turn, of each tier"""


def recipe(tier: str, environment: EnvironmentConfig, noise: float | None = None) -> NoisyPolicy:
    """The policy of a tier.

    Args:
        tier: random, medium, expert or mixed.
        noise: the share of random actions of an expert, in place of none.

    Raises:
        UnknownNameError: there is no such tier.
        ConfigError: the environment has no expert, and the tier needs one; noise beside another
            tier than 'expert', which are defined by theirs.
        UnsupportedError: actions without bounds, which cannot be drawn at random.
    """
    if tier not in TIERS:
        raise unknown("recipe", tier, TIERS)
    if noise is not None and tier != EXPERT:
        raise ConfigError(
            f"--noise={noise:g} beside the recipe '{tier}', which has its own: leave it out, or "
            f"take '{EXPERT}'"
        )
    trial = make_environment(EnvironmentConfig(environment.name, (), environment.options))
    trial.close()
    _, actions = spaces_of(trial, environment.name)
    expert = EXPERTS.get(environment.name)
    if expert is None:
        if tier != RANDOM:
            raise ConfigError(
                f"there is no expert for {environment.name}, whose actions the recipe '{tier}' "
                f"needs; {listed(list(EXPERTS))} have one: take '{RANDOM}', or a trained run"
            )
        return NoisyPolicy(None, actions, uniform(actions), lambda _: 1.0, _random(Expert.walks))
    levels = TIERS[tier](expert) if noise is None else (converted(Share, noise, "--noise"),)
    draw = uniform(actions) if expert.walk is None else expert.walk(trial.unwrapped)
    if levels == (1.0,):
        return NoisyPolicy(None, actions, draw, lambda _: 1.0, _random(expert.walks))
    shares = " / ".join(f"{level:g}" for level in levels) + " in turn" * (len(levels) > 1)
    sentence = (
        f"{tier}: {expert.what}; each action replaced with probability {shares} by {expert.walks}"
    )
    base = expert.build(trial.unwrapped)
    return NoisyPolicy(base, actions, draw, lambda n: levels[n % len(levels)], sentence)


def _random(walks: str) -> str:
    return f"{RANDOM}: {walks}"
