"""Recorded episodes for tests, as a person has them: files, or a data set of Minari's."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.data.episodes import Space, Trajectories


def as_files(recorded: Trajectories, folder: Path) -> Path:
    """A folder with an .npz an episode."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, episode in enumerate(recorded.episodes):
        np.savez(folder / f"{number:04}.npz", **episode.arrays())
    return folder


def as_minari(recorded: Trajectories, name: str) -> Any:
    """A data set that Minari makes, under this id; of the environment that gymnasium knows, if it
    does."""
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    known = recorded.environment in gymnasium.registry
    buffers = [EpisodeBuffer(**episode.arrays()) for episode in recorded.episodes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of facts that nobody gives
        return minari.create_dataset_from_buffers(
            name, buffers, env=gymnasium.make(str(recorded.environment)) if known else None,
            observation_space=_space(recorded.observation_space),
            action_space=_space(recorded.action_space), algorithm_name="by hand",
        )  # fmt: skip


def _space(space: Space) -> Any:
    from gymnasium import spaces

    if space.discrete:
        return spaces.Discrete(space.size)
    low, high = (end.astype(space.dtype) for end in space.bounds())
    return spaces.Box(low, high, dtype=np.dtype(space.dtype).type)
