"""`frames`: the pictures of an episode, which is played once more from its seed and its actions;
`write_film`: pictures as a file that moves.

So any recorded episode of an environment that can be drawn becomes a film afterwards, whoever
played it, and nothing is drawn while data are collected.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from everyformer.core.errors import DataError
from everyformer.core.extras import extra_module
from everyformer.core.files import file_written_whole
from everyformer.rl.build import EnvironmentConfig, make_environment
from everyformer.rl.episode import Episode

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
    if episode.seed is None:
        raise DataError(
            "the episode has no seed, so that it cannot be played once more to be drawn: take one "
            "that 'everyformer collect' recorded"
        )
    drawn = make_environment(environment, "rgb_array")
    try:
        drawn.reset(seed=episode.seed)
        pictures = [drawn.render()]
        for step, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
            _, again, terminated, truncated, _ = drawn.step(action)
            over = bool(episode.terminations[step] or episode.truncations[step])
            if abs(float(again) - reward) > CLOSE or bool(terminated or truncated) != over:
                raise DataError(
                    f"the episode with seed {episode.seed} goes another way at step {step} when it "
                    f"is played once more in {environment}: it is of another environment, or of "
                    "one that its seed does not determine"
                )
            pictures.append(drawn.render())
    finally:
        drawn.close()
    return np.stack(pictures)  # type: ignore[arg-type]


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
