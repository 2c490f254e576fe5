"""Pictures of `everyformer show RUN returns|film|attended`, for which the run plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from everyformer.cli.playing import environment_of, played_by, rows_of, targets_of
from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.tasks import TASKS, tasks_that
from everyformer.generation.config import PlayConfig
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from everyformer.cli.trained import TrainedRun
    from everyformer.models.decision import DecisionModel
    from everyformer.models.policy import PolicyModel
    from everyformer.rl.trajectories import Trajectories

TARGETS = 5
"""returns that are asked for, from the worst to the best of the data, where none are said"""
BEYOND = 0.25
"""of the way from the worst to the best, by which one more exceeds the best"""
REMEMBERED, STEPS = 3, 256
"""episodes that a policy plays to show what it remembers, and steps of them that are drawn"""


def draw_episodes(options: ShowOptions, of_environment: dict[str, Any]) -> int:
    """Play, draw, and print where the picture is."""
    from everyformer.cli.trained import open_run
    from everyformer.report.style import save_figure

    if not expanded(options.run).is_dir():
        raise ConfigError(
            f"'{options.what}' is of a run that plays, and '{options.run}' is no directory of one"
        )
    trained = open_run(options.run)
    if not TASKS[trained.task].acts:
        raise ConfigError(
            f"'{options.what}' is of runs that act ({', '.join(tasks_that('acts'))}), and this one "
            f"has the task {trained.task}"
        )
    figure = EPISODES[options.what](trained, options.play, of_environment)
    folder = folder_of(options, trained.path)
    path = save_figure(figure, folder / f"{options.what}.{options.format}")
    return tell(options, path, str(figure.get_label()))


def _returns(trained: TrainedRun, play: PlayConfig, of_environment: dict[str, Any]) -> Figure:
    """Returns against the returns asked for; their spread, where nothing can be asked for."""
    from everyformer.report.episodes import draw_returns, draw_spread
    from everyformer.training.returns import played

    model = cast("DecisionModel | PolicyModel", trained.model())
    known = trained.values.get("data", {}).get("returns")
    best = None if known is None else float(known["return_max"])
    if targets_of(trained, model, play) == (None,):
        [(_, episodes)] = played_by(trained, play, of_environment, model=model)
        return draw_spread(episodes.returns, played(episodes), best)
    if not play.target and known is not None:
        low, high = float(known["return_min"]), float(known["return_max"])
        step = (high - low) / (TARGETS - 1)
        within = [low + n * step for n in range(TARGETS)]
        play = replace(play, target=tuple(within if low < high else [high]))
        play = replace(play, target=(*play.target, high + BEYOND * ((high - low) or 1.0)))
    return draw_returns(rows_of(played_by(trained, play, of_environment, model=model)), best)


def _film(trained: TrainedRun, play: PlayConfig, of_environment: dict[str, Any]) -> Figure:
    from everyformer.report.episodes import draw_film
    from everyformer.rl.build import make_environment
    from everyformer.rl.replay import frames

    # what drawing needs is missed before it is played, not after
    trial = make_environment(environment_of(trained, play, of_environment), "rgb_array")
    trial.reset(seed=0)
    trial.render()
    trial.close()
    played = _one_episode(trained, play, of_environment)
    assert played.environment is not None
    episode = played.episodes[0]
    return draw_film(frames(played.environment, episode), episode.rewards, str(played.environment))


def _attended(trained: TrainedRun, play: PlayConfig, of_environment: dict[str, Any]) -> Figure:
    """Weights of the last window of an episode; of a policy all that it remembers as it plays."""
    if TASKS[trained.task].interacts:
        return _remembered(trained, play, of_environment)
    import numpy as np

    from everyformer.data.config import DataConfig
    from everyformer.data.episodes import episode_dataset
    from everyformer.report.episodes import draw_attended
    from everyformer.report.inside import View
    from everyformer.report.pictures import Inside

    model = cast("DecisionModel", trained.model())
    if not model.layered:
        raise UnsupportedError(f"{model.config.member} has no layers whose weights could be shown")
    played = _one_episode(trained, play, of_environment)
    config, shape = model.config, model.config.episodes
    data = episode_dataset(
        played, DataConfig(context=shape.context, validation=1.0), "decision", "an episode"
    )
    steps = len(played.episodes[0])
    begin = max(0, steps - shape.context)
    batch = data.windows(np.zeros(1, np.int64), np.array([begin]))
    assert batch.keep is not None
    real = batch.keep[0]
    inputs = {name: getattr(batch, name)[:, real] for name in ("returns", "actions", "timesteps")}
    inside = Inside(model, batch.inputs[:, real], extra=inputs)
    inside.require("weights")
    weights = View(inside.traced, "weights", causal=True).maps
    return draw_attended(weights, config.step_tokens, config.step_tokens - 2, begin)


def _remembered(trained: TrainedRun, play: PlayConfig, of_environment: dict[str, Any]) -> Figure:
    """Weights of the steps of some episodes, one after the other, as a policy played them."""
    import numpy as np

    from everyformer.core.trace import trace
    from everyformer.generation.acting import weights_by_step
    from everyformer.report.episodes import draw_remembered
    from everyformer.rl.environments.base import CUE
    from everyformer.rl.replay import infos

    model = cast("PolicyModel", trained.model())
    play = replace(play, episodes=play.episodes or REMEMBERED, parallel=1)
    with trace(model) as traced:
        [(_, episodes)] = played_by(trained, play, of_environment, model=model)
    weights = weights_by_step(model, traced, STEPS)
    assert episodes.environment is not None
    begins = [0, *np.cumsum(episodes.lengths)[:-1].tolist()]
    cues: list[int] = []
    for begin, episode in zip(begins, episodes.episodes, strict=True):
        if begin < STEPS and (seen := infos(episodes.environment, episode, CUE)) is not None:
            cues += (begin + np.flatnonzero(seen[:-1])).tolist()
    return draw_remembered(weights, begins, cues)


def _one_episode(
    trained: TrainedRun, play: PlayConfig, of_environment: dict[str, Any]
) -> Trajectories:
    if len(play.target) > 1:
        raise ConfigError("one episode is drawn, asked for one --target: give one")
    if play.episodes not in (None, 1):
        raise ConfigError(f"one episode is drawn, not --episodes {play.episodes}: leave it out")
    [(_, episodes)] = played_by(trained, replace(play, episodes=1), of_environment)
    return episodes


EPISODES: dict[str, Callable[..., Figure]] = {
    "returns": _returns, "film": _film, "attended": _attended,
}  # fmt: skip
"""pictures for which a run plays"""
