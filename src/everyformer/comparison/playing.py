"""Returns of a trained model that acts, in the environment of its data."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from everyformer.comparison.results import Played
from everyformer.core.errors import MissingExtraError
from everyformer.core.student import mean_interval
from everyformer.data.dataset import Dataset
from everyformer.data.episodes import EpisodeDataset
from everyformer.generation.acting import play
from everyformer.generation.config import PlayConfig
from everyformer.models.base import Model
from everyformer.rl.build import is_registered
from everyformer.training.returns import EPISODES, cut, played

if TYPE_CHECKING:
    from everyformer.models.decision import DecisionModel


def returns_of(model: Model, dataset: Dataset, seed: int) -> Played | None:
    """Mean return when the best one of the data is requested; None where the environment is not
    known, or not installed."""
    assert isinstance(dataset, EpisodeDataset)
    environment = dataset.environment
    try:
        if environment is None or not is_registered(environment.name):
            return None
    except MissingExtraError:
        return None
    chosen, acting = model.config.decision, cast("DecisionModel", model)
    reads = chosen.body == "layers" and chosen.return_to_go
    target = dataset.returns.return_max if reads else None
    options = PlayConfig(episodes=EPISODES, seed=seed)
    returns = played(play(acting, environment, target, options, delayed=dataset.delayed))
    interval, ends = returns["return_interval"], returns["return_ends"]
    return {"return": returns["return"], "interval": interval, "target": target, "ends": ends}


def mean_of(each: Sequence[Played]) -> Played:
    """Mean of several trainings: the mean return with its interval over them."""
    if len(each) == 1:
        return each[0]
    values = [one["return"] for one in each]
    interval = cut(mean_interval(values), [one.get("ends", (None, None)) for one in each])
    return {**each[0], "return": statistics.mean(values), "interval": interval}
