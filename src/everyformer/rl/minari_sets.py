"""Minari's data sets, read and written where they lie on this machine; nothing is downloaded.

Minari keeps a data set as ``ROOT/ID/data``, where ROOT is ``~/.minari/datasets`` or what
``MINARI_DATASETS_PATH`` says, and ID is ``(namespace/)name-vN``; ours may lie in any folder. They
are written whole in its HDF5 form, pictures without loss; what Minari has no word for (recipe,
seed, facts) lies in its table of facts under ``everyformer``, and is read back.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, DataError, nearest
from everyformer.rl.build import (
    STEPS,
    EnvironmentConfig,
    is_registered,
    make_environment,
    without_defaults,
)
from everyformer.rl.episode import Episode
from everyformer.rl.spaces import Space
from everyformer.rl.trajectories import Trajectories
from everyformer.system.extras import extra_module
from everyformer.system.files import expanded, require_no_file, written_whole
from everyformer.system.pulse import doing
from everyformer.system.sealed import DamagedError

OURS = "everyformer"
"""the entry of Minari's facts that holds ours, and who wrote them"""
DATA, FACTS, ARRAYS = "data", "metadata.json", "main_data.hdf5"
MINARI = "minari:"
"""before an id, in place of a folder"""
HIDDEN = "everyformer.rl.hidden:HiddenEntries"


def write_trajectories(trajectories: Trajectories, place: str | Path) -> Path:
    """Write a new data set of Minari's, whole or not at all; give its folder.

    Args:
        place: a folder, or ``minari:ID`` for one among Minari's own, ID being
            ``(namespace/)name-vN``.

    Raises:
        MissingExtraError: minari is not installed.
        ConfigError: something is there already, or the id is of another form.
        UnsavedError: it cannot be written; nothing is left of it.
    """
    minari = _minari()
    folder = require_free(place)
    name = str(place).removeprefix(MINARI) if folder != expanded(place) else f"{OURS}/episodes-v0"
    known = trajectories.environment
    with doing(f"writing {len(trajectories):,} episodes"), written_whole(folder) as work:
        storage = _module("dataset.minari_storage").MinariStorage.new(
            (work / DATA).absolute(),
            trajectories.observation_space.for_gymnasium(),
            trajectories.action_space.for_gymnasium(),
            None if known is None else _spec(known),
            jpeg_encoding=False,
        )
        storage.update_metadata(
            {
                "dataset_id": name,
                "minari_version": minari.__version__,
                "author": {OURS},
                "algorithm_name": trajectories.recipe,
                "description": trajectories.recipe,
                OURS: {
                    "environment": to_dict(known),
                    "recipe": trajectories.recipe,
                    "seed": trajectories.seed,
                    "facts": [dict(episode.facts) for episode in trajectories.episodes],
                },
            }
        )
        buffer = _module("data_collector").EpisodeBuffer
        storage.update_episodes(
            buffer(id=number, seed=episode.seed, **episode.arrays())
            for number, episode in enumerate(trajectories.episodes)
        )
    if folder != expanded(place) and "/" in name:
        namespace, spaces = name.rpartition("/")[0], _module("namespace")
        if namespace not in spaces.list_local_namespaces():
            spaces.create_namespace(namespace)
    return folder


def require_free(place: str | Path) -> Path:
    """The folder of ``place`` (see `write_trajectories`), where nothing is yet.

    Raises:
        ConfigError: something is, or an id is of another form.
    """
    folder, name = expanded(place), str(place).removeprefix(MINARI)
    if not str(place).startswith(MINARI):
        require_no_file(folder)
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose another --out for the trajectories")
        return folder
    try:
        _module("dataset.minari_dataset").parse_dataset_id(name)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"'{name}' is no id of Minari's: write it as (namespace/)name-vN, such as "
            "cartpole/mixed-v0"
        ) from error
    folder = _place(name)
    if folder.exists():
        raise ConfigError(f"Minari has a data set '{name}' already, in {folder}: raise its version")
    return folder


def holds_minari(folder: Path) -> bool:
    """True where `read_minari` would read ``folder``, by names alone."""
    return any((place / ARRAYS).is_file() for place in (folder, folder / DATA))


def read_minari(source: str | Path) -> Trajectories:
    """The episodes of one of Minari's data sets.

    Args:
        source: its id, or its folder.

    Raises:
        MissingExtraError: minari is not installed.
        DataError: it is not on this machine, or its arrays contradict one another.
        DamagedError: it cannot be read.
        UnsupportedError: observations or actions of a kind that no policy here deals with.
    """
    minari = _minari()
    folder = _folder(source)
    with doing(f"reading {source}"), _damage(folder):
        dataset = minari.MinariDataset(folder)
        ours = dataset.storage.metadata.get(OURS, {})
        metadata = list(dataset.storage.get_episode_metadata(dataset.episode_indices))
        episodes = list(dataset.iterate_episodes())
    spaces = [
        Space.of(space, f"the {name} of {source}", action=name == "actions")
        for name, space in (
            ("observations", dataset.observation_space), ("actions", dataset.action_space),
        )
    ]  # fmt: skip
    facts = ours.get("facts", [{}] * len(episodes))
    try:
        return Trajectories(
            [
                _episode(number, vars(data), _seed(about.get("seed")), numbers)
                for number, (data, about, numbers) in enumerate(
                    zip(episodes, metadata, facts, strict=True)
                )
            ],
            spaces[0],
            spaces[1],
            _environment(dataset.env_spec, ours),
            ours.get("recipe", f"Minari's {dataset.id}"),
            ours.get("seed"),
        )
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _episode(
    number: int, arrays: dict[str, Any], seed: int | None, facts: dict[str, float]
) -> Episode:
    try:
        return Episode.of(arrays, seed, facts)
    except DataError as error:
        raise DataError(f"episode {number}: {error}") from error


def _spec(environment: EnvironmentConfig) -> Any:
    """The spec of an environment, for Minari; None where it has a form that cannot be written."""
    trial = make_environment(environment)
    spec: Any = trial.spec
    trial.close()
    try:
        spec.to_json()
    except ValueError:
        return None
    return spec


def _environment(spec: Any, ours: dict[str, Any]) -> EnvironmentConfig | None:
    """The environment as we have written it, or by the spec that Minari holds; None where our words
    do not suffice."""
    if "environment" in ours:
        return ours["environment"] and from_dict(EnvironmentConfig, ours["environment"])
    if spec is None:
        return None
    mask: list[int] = []
    for wrapper in spec.additional_wrappers:
        if wrapper.entry_point != HIDDEN:
            return None
        mask += wrapper.kwargs["mask"]
    options = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    if spec.max_episode_steps is not None:
        options[STEPS] = spec.max_episode_steps
    config = EnvironmentConfig(spec.id, tuple(mask), options)
    return without_defaults(config) if is_registered(spec.id) else config


def _folder(source: str | Path) -> Path:
    """Folder of the facts and the arrays of a data set."""
    for folder in (expanded(source), _place(str(source))):
        for place in (folder, folder / DATA):
            if (place / FACTS).is_file():
                return place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data sets beside it that are damaged
        known = sorted(_minari().list_local_datasets())
    here = nearest(str(source), known) if known else "there is none on this machine"
    raise DataError(
        f"Minari has no data set '{source}' on this machine ({here}): download it with 'minari "
        f"download {source}', or give a folder"
    )


def _place(name: str) -> Path:
    place: Path = _module("storage.datasets_root_dir").get_dataset_path(name)
    return place


def _seed(value: Any) -> int | None:
    return None if value is None else int(value)


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        raise DamagedError(
            f"{folder} cannot be read ({error}): it was cut short or damaged, or is of a form that "
            "this version of Minari does not know"
        ) from error


def _minari() -> Any:
    return extra_module("minari", "rl", "a data set of Minari's")


def _module(name: str) -> Any:
    return extra_module(f"minari.{name}", "rl", "a data set of Minari's")
