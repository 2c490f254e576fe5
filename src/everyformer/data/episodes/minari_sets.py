"""Minari's data sets, read where they lie on this machine; nothing is downloaded.

Minari keeps a data set as ``ROOT/ID/data``, where ROOT is ``~/.minari/datasets`` or what
``MINARI_DATASETS_PATH`` says, and ID is ``(namespace/)name-vN``; others may lie in any folder.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.core.errors import DataError, UnsupportedError, nearest
from everyformer.data.episodes.episode import Episode
from everyformer.data.episodes.spaces import Space
from everyformer.data.episodes.trajectories import Trajectories
from everyformer.system.files import expanded
from everyformer.system.sealed import DamagedError
from everyformer.system.status import status
from sequence_laws.extras import extra_module

DATA, FACTS, ARRAYS = "data", "metadata.json", "main_data.hdf5"
MINARI = "minari:"
"""before an id, in place of a folder"""


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
        UnsupportedError: observations or actions of a kind that no model here reads.
    """
    minari = _minari()
    folder = _folder(source)
    with status(f"reading {source}"), _damage(folder):
        dataset = minari.MinariDataset(folder)
        episodes = list(dataset.iterate_episodes())
    observed, acted = (
        _space(space, f"the {name} of {source}", action=name == "actions")
        for name, space in (
            ("observations", dataset.observation_space), ("actions", dataset.action_space),
        )
    )  # fmt: skip
    spec, ours = dataset.env_spec, dataset.storage.metadata.get("everyformer", {})
    try:
        return Trajectories(
            [_episode(number, vars(data)) for number, data in enumerate(episodes)],
            observed,
            acted,
            None if spec is None else spec.id,
            ours.get("recipe", f"Minari's {dataset.id}"),
        )
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _episode(number: int, arrays: dict[str, Any]) -> Episode:
    try:
        return Episode.of(arrays)
    except DataError as error:
        raise DataError(f"episode {number}: {error}") from error


def _space(space: Any, what: str, *, action: bool) -> Space:
    """The record of a gymnasium space, of ``what``.

    Raises:
        UnsupportedError: one that is neither discrete nor, of actions, a vector of reals, nor, of
            observations, a box.
    """
    spaces = extra_module("gymnasium.spaces", "rl", "a data set of Minari's")
    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise UnsupportedError(
                f"{what} are numbered from {space.start}; only those numbered from 0 are "
                "supported: subtract it where they are recorded"
            )
        return Space("discrete", "int64", count=int(space.n))
    if isinstance(space, spaces.Box) and (
        not action or (len(space.shape) == 1 and space.dtype.kind == "f")
    ):
        low, high = (_ends(end) for end in (space.low, space.high))
        return Space("box", space.dtype.name, tuple(space.shape), low=low, high=high)
    allowed = "Discrete and Box of one dimension, of reals," if action else "Discrete and Box"
    raise UnsupportedError(
        f"{what} are {space}; only {allowed} are supported: bring them into one of these where "
        "they are recorded"
    )


def _ends(values: np.ndarray) -> tuple[float | None, ...]:
    """The ends of a box; a single one where all are alike, None for infinite ones."""
    flat = values.ravel()
    flat = flat[:1] if flat.size and (flat == flat[0]).all() else flat
    return tuple(float(end) if math.isfinite(end) else None for end in flat.tolist())


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
    roots = extra_module("minari.storage.datasets_root_dir", "rl", "a data set of Minari's")
    place: Path = roots.get_dataset_path(name)
    return place


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
