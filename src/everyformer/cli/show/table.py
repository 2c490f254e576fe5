"""`PICTURES`: the function that draws a picture of `everyformer show`, by the picture's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everyformer.cli.show.curves import CURVES, check_curves, draw_curves
from everyformer.cli.show.episodes import EPISODES, check_episodes, draw_episodes
from everyformer.cli.show.inside import draw_inside
from everyformer.cli.show.neighbours import NEIGHBOURS, check_neighbours, draw_neighbours
from everyformer.cli.show.options import ShowOptions
from everyformer.cli.show.saved import SAVED, draw_saved

PICTURES: dict[str, Callable[[ShowOptions, dict[str, Any]], int]] = {
    **dict.fromkeys(SAVED, draw_saved),
    **dict.fromkeys(EPISODES, draw_episodes),
    CURVES: draw_curves,
    NEIGHBOURS: draw_neighbours,
}
"""all but those of the inside of a model, which the model itself names"""


def draw(options: ShowOptions, of_environment: dict[str, Any]) -> int:
    """Draw ``options.what`` and print where it is; the exit code.

    Raises:
        ConfigError: options that belong to other pictures.
    """
    check_neighbours(options)
    check_curves(options)
    check_episodes(options, of_environment)
    return PICTURES.get(options.what, draw_inside)(options, of_environment)
