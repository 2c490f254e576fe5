"""`frames`: the pictures of an episode, which is played once more from its seed and its actions;
`told`: what its environment said beside them; `write_film`: pictures as a file that moves.

So any recorded episode of an environment that can be drawn becomes a film afterwards, whoever
played it, and nothing is drawn while data are collected.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.rl.build import EnvironmentConfig, make_environment
from everyformer.rl.episode import Episode
from everyformer.system.extras import extra_module
from everyformer.system.files import file_written_whole

RATE = 15
"""pictures a second where the environment does not say"""
CLOSE = 1e-6
"""to which rewards are the same when an episode is played once more"""


def frames(environment: EnvironmentConfig, episode: Episode) -> np.ndarray:
    """Pictures (T + 1, height, width, 3) of an episode, as bytes, the start included.

    Raises:
        DataError: the episode has no seed, or goes another way from it.
        ConfigError: the environment cannot be drawn as arrays.
        Those of `everyformer.rl.build.make`.
    """
    played = _again(environment, episode, "rgb_array")
    return np.stack([drawn.render() for drawn, _ in played])


def infos(environment: EnvironmentConfig, episode: Episode, name: str) -> np.ndarray | None:
    """Values of ``info[name]`` at each of the T + 1 observations; None where it is not there.

    Raises:
        Those of `frames`.
    """
    values = [info.get(name) for _, info in _again(environment, episode)]
    return None if any(each is None for each in values) else np.array(values)


def _again(
    environment: EnvironmentConfig, episode: Episode, render_mode: str | None = None
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The environment and its ``info`` at every observation of an episode, played once more."""
    if episode.seed is None:
        raise DataError(
            "the episode has no seed, so that it cannot be played once more to be drawn: take one "
            "that 'everyformer collect' recorded"
        )
    again = make_environment(environment, render_mode)
    try:
        yield again, again.reset(seed=episode.seed)[1]
        for step, (action, paid) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
            _, reward, terminated, truncated, info = again.step(action)
            over = bool(episode.terminations[step] or episode.truncations[step])
            if abs(float(reward) - paid) > CLOSE or bool(terminated or truncated) != over:
                raise DataError(
                    f"the episode with seed {episode.seed} goes another way at step {step} when it "
                    f"is played once more in {environment}: it is of another environment, or of "
                    "one that its seed does not determine"
                )
            yield again, info
    finally:
        again.close()


def write_film(environment: EnvironmentConfig, episode: Episode, path: Path) -> Path:
    """Write an episode as an animated GIF, whole or not at all.

    Raises:
        MissingExtraError: pillow is not installed.
        Those of `frames`.
    """
    images = extra_module("PIL.Image", "images", "a film", "pillow")
    trial = make_environment(environment)
    rate = trial.metadata.get("render_fps") or RATE
    trial.close()
    first, *rest = [images.fromarray(picture) for picture in frames(environment, episode)]
    with file_written_whole(path) as file:
        first.save(
            file, format="GIF", save_all=True, append_images=rest, duration=1000 / rate, loop=0
        )
    return path
