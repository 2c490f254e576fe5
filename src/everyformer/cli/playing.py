"""Episodes of a trained run: what `eval` says of them, and what `generate` records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everyformer.cli.console import table
from everyformer.cli.messages import changed
from everyformer.cli.parsing import VerbOptions, say, take
from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, EveryformerError
from everyformer.core.tasks import TASKS, tasks_that
from everyformer.generation.config import PlayConfig
from everyformer.rl.build import EnvironmentConfig
from everyformer.system.files import expanded
from everyformer.system.plain import from_json, to_json
from everyformer.system.pulse import doing

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.models.decision import DecisionModel
    from everyformer.models.policy import PolicyModel
    from everyformer.rl.trajectories import Trajectories

PREFIX = "--env."
PLAYED = frozenset(field.name for field in fields(PlayConfig))
"""options of playing"""
MEASURES = ("return", "normalised", "success", "steps")


def take_environment(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Options of an environment among ``words`` (``--env.length 20``) by name, and other words.

    Several values of one option are a list.

    Raises:
        ConfigError: an option without a value.
    """
    options: dict[str, list[Any]] = {}
    rest: list[str] = []
    name = None
    for word in words:
        if word.startswith(PREFIX):
            name, equals, value = word.removeprefix(PREFIX).partition("=")
            name = name.replace("-", "_")
            options[name] = [_value(value)] if equals else []
        elif name is not None and (not word.startswith("-") or _is_number(word)):
            options[name].append(_value(word))
        else:
            name = None
            rest.append(word)
    for option, values in options.items():
        if not values:
            raise ConfigError(f"{PREFIX}{option.replace('_', '-')} needs a value")
    mask = {"mask": options.pop("mask")} if "mask" in options else {}
    single = {option: v[0] if len(v) == 1 else v for option, v in options.items()}
    return {**single, **mask}, rest


def environment_words(words: Sequence[str]) -> list[str]:
    """``words`` with an environment and its options as the data that is played: --env NAME,
    --env.mask, --env.number, and options of its own as --env.OPTION.

    Raises:
        ConfigError: an option without a value.
    """
    options, rest = take_environment(words)
    name, rest = take(rest, "--env")
    said = [] if name is None else ["--data.env", name]
    own = {"mask": "--data.env-mask", "number": "--data.env-number"}
    for option, flag in own.items():
        if option in options:
            value = options.pop(option)
            said += [flag, *map(str, value if isinstance(value, list) else [value])]
    if options:
        pairs = (f"{option}={to_json(value)}" for option, value in options.items())
        said += ["--data.env-options", *pairs]
    return [*rest, *said]


def check_playing(trained: TrainedRun, play: PlayConfig, options: dict[str, Any]) -> bool:
    """True if episodes are to be played.

    Raises:
        ConfigError: options of that for a run that does not act.
    """
    if TASKS[trained.task].acts:
        chosen = play != PlayConfig() or bool(options)
        return chosen or TASKS[trained.task].interacts
    names = [name for name in ("env", "target", "episodes", "delayed", "rolling", "parallel")
             if getattr(play, name) != getattr(PlayConfig, name)]  # fmt: skip
    names += [f"env.{name}" for name in options]
    if names:
        raise ConfigError(
            f"--{names[0].replace('_', '-')} is for runs that act ({', '.join(tasks_that('acts'))})"
            f", and this one has the task {trained.task}: leave it out"
        )
    return False


def refuse_unplayed(
    trained: TrainedRun, options: VerbOptions, default: VerbOptions, *used: str
) -> None:
    """Refuse options that say nothing of episodes which are played.

    Args:
        default: the options where nothing is said.
        used: fields that say something beside those of `PlayConfig` and those of any run.

    Raises:
        ConfigError: names the first of them.
    """
    known = {"run", "device", "average", "json", *used, *PLAYED}
    for name, flag in changed(options, default):
        if name not in known:
            other = ""
            if TASKS[trained.task].recorded and hasattr(options, "data"):
                other = ", or all options of playing, to measure it on data"
            raise ConfigError(
                f"{flag} has no meaning: the {trained.task} run in {trained.path} plays episodes, "
                f"in --env NAME and as many as --episodes says; leave {flag} out{other}"
            )


def played_by(
    trained: TrainedRun,
    play: PlayConfig,
    options: dict[str, Any],
    average: int | None = None,
    model: DecisionModel | PolicyModel | None = None,
) -> list[tuple[float | None, Trajectories]]:
    """Episodes for every target that is asked for, by the run's ``model`` where it is read yet."""
    from everyformer.generation import acting

    if play.rolling and TASKS[trained.task].interacts:
        raise ConfigError(
            "--rolling is of runs that read a window of steps (decision), and a policy always goes "
            "on with its state: leave it out"
        )
    if model is None:
        model = cast("DecisionModel | PolicyModel", trained.model(average))
    environment = environment_of(trained, play, options)
    data = trained.values.get("data", {})
    delayed = data.get("delayed", False) if play.delayed is None else play.delayed
    count = play.episodes or acting.EPISODES
    played: list[tuple[float | None, Trajectories]] = []
    for target in targets_of(trained, model, play):
        words = "" if target is None else f", asked for {target:g}"
        with doing(f"playing {count} episodes of {environment}{words}"):
            made = acting.play(model, environment, target, play, delayed=delayed)
        played.append((target, made))
    return played


def environment_of(
    trained: TrainedRun, play: PlayConfig, options: dict[str, Any]
) -> EnvironmentConfig:
    """The environment that is named, or that of the run's data, with ``options`` on top.

    Raises:
        ConfigError: neither is known.
    """
    recorded = trained.values.get("data", {}).get("environment")
    known = None if recorded is None else from_dict(EnvironmentConfig, recorded)
    mask = options.get("mask")
    more = {name: value for name, value in options.items() if name != "mask"}
    if known is not None and play.env in (None, known.name):
        hidden = known.mask if mask is None else tuple(mask)
        return EnvironmentConfig(known.name, hidden, known.options | more)
    if play.env is None:
        raise ConfigError(
            f"the environment of the {'model' if trained.saved else 'data'} is not known: name it "
            "with --env"
        )
    return EnvironmentConfig(play.env, tuple(mask or ()), more)


def targets_of(
    trained: TrainedRun, model: DecisionModel | PolicyModel, play: PlayConfig
) -> tuple[float | None, ...]:
    """The returns that are asked for.

    Raises:
        ConfigError: some are, of a model that reads none; or none, and the data's are not known.
    """
    chosen = model.config.decision
    reads = TASKS[trained.task].recorded and chosen.body == "layers" and chosen.return_to_go
    if not reads:
        if play.target or play.delayed is not None:
            said = f"--target {play.target[0]:g}" if play.target else f"--delayed {play.delayed}"
            raise ConfigError(
                f"{said}: this {model.config.member} reads no return-to-go, so none can be asked "
                "for: leave it out"
            )
        return (None,)
    if play.target:
        return play.target
    returns = trained.values.get("data", {}).get("returns")
    if returns is None:
        raise ConfigError(
            f"the model in {trained.path} does not know the returns of its data: say what to ask "
            "for with --target"
        )
    return (float(returns["return_max"]),)


def rows_of(episodes: Sequence[tuple[float | None, Trajectories]]) -> list[dict[str, Any]]:
    """Measures of the episodes, a row a target."""
    from everyformer.training.returns import played

    return [{"target": target, **played(each)} for target, each in episodes]


def at_random(episodes: Sequence[tuple[float | None, Trajectories]], seed: int) -> dict[str, Any]:
    """The same of as many episodes with random actions, in the same environment."""
    from everyformer.rl.collection import collect
    from everyformer.rl.recipes import recipe
    from everyformer.training.returns import played

    [(_, first), *_] = episodes
    assert first.environment is not None
    made = collect(first.environment, recipe("random", first.environment), len(first), seed)
    return {"target": "random actions", **played(made)}


def returns_table(rows: Sequence[dict[str, Any]]) -> str:
    """The same for people: means with their 95% intervals."""
    names = [name for name in MEASURES if any(name in row for row in rows)]
    head = "asked for" if any(isinstance(row["target"], float) for row in rows) else "played by"
    cells = []
    for row in rows:
        target = row["target"]
        asked = f"{target:g}" if isinstance(target, float) else target or "the model"
        line: list[Any] = [asked, row["episodes"]]
        for name in names:
            around = row[f"{name}_interval"]
            span = f" ({around[0]:.4g} to {around[1]:.4g})" if around else ""
            line.append(f"{row[name]:.4g}{span}")
        cells.append(line)
    return table([head, "episodes", *names], cells)


def record(
    trained: TrainedRun,
    play: PlayConfig,
    options: dict[str, Any],
    out: str | None,
    average: int | None = None,
) -> tuple[Path, Path | None, list[dict[str, Any]]]:
    """Play and write: the folder of the episodes, a film of the first one where it can be drawn,
    and what they came to.

    Raises:
        ConfigError: several targets, or the folder holds something.
    """
    from everyformer.rl.minari_sets import require_free, write_trajectories
    from everyformer.rl.replay import write_film

    folder = trained.path / "episodes" if out is None else expanded(out)
    if len(play.target) > 1:
        raise ConfigError("episodes are recorded for one --target at a time: give one")
    require_free(folder)
    played = played_by(trained, play, options, average)
    [(_, episodes)] = played
    write_trajectories(episodes, folder)
    assert episodes.environment is not None
    film = folder.with_name(f"{folder.name}.gif")
    try:
        write_film(episodes.environment, episodes.episodes[0], film)
    except EveryformerError as error:
        say(f"no film: {error}")
        return folder, None, rows_of(played)
    return folder, film, rows_of(played)


def _value(text: str) -> Any:
    try:
        return from_json(text)
    except json.JSONDecodeError:
        return {"yes": True, "no": False, "true": True, "none": None}.get(text.lower(), text)


def _is_number(word: str) -> bool:
    return isinstance(_value(word), int | float)
