"""Recorded episodes: `read_trajectories` reads a data set of Minari's, or what a person wrote.

That is a file an episode, ``.npz`` as numpy writes it, in the order of their names; arrays for T
steps:

    observations    (T + 1, ...)   the last row is where the episode ended
    actions         (T,) whole numbers from 0, or (T, numbers) reals
    rewards         (T,)
    terminations    (T,) booleans  the task ended with this step
    truncations     (T,) booleans  a limit of time cut the episode here

Other arrays are left alone. Spaces are the smallest that hold all rows; of whole numbers those
below 65,536, or below the number of steps where that is larger.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from everyformer.core.errors import DataError, nearest
from everyformer.core.wording import join_first
from everyformer.data.episodes.episode import NAMES, Episode
from everyformer.data.episodes.minari_sets import MINARI, holds_minari, read_minari
from everyformer.data.episodes.spaces import Space
from everyformer.data.episodes.trajectories import Trajectories
from everyformer.system.files import expanded
from everyformer.system.sealed import DamagedError
from everyformer.system.status import status

MOST_VALUES = 65_536
"""different whole numbers that data without a space may have, if they have no more steps"""
READABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
"""errors of numpy for a file that is none of its own, or was cut"""


def read_trajectories(source: str | Path) -> Trajectories:
    """The episodes of a data set of Minari's, a folder of files, or one file.

    Args:
        source: a path, or ``minari:ID``.

    Raises:
        DataError: nothing of the kind is there, or arrays are missing or contradict one another;
            names the file.
        DamagedError: a file was cut short.
        UnsupportedError: arrays of a form that no model here reads.
        MissingExtraError: minari is needed and not installed.
    """
    if str(source).startswith(MINARI):
        return read_minari(str(source).removeprefix(MINARI))
    if holds_minari(folder := expanded(source)):
        return read_minari(folder)
    with status(f"reading the episodes in {folder}"):
        return _read_files(folder)


def holds_trajectories(path: Path) -> bool:
    """True where `read_trajectories` would read ``path``, by names alone."""
    if holds_minari(path):
        return True
    files = [path] if path.suffix == ".npz" else sorted(path.glob("*.npz")) if path.is_dir() else []
    return bool(files) and _names(files[0]) >= {"observations", "actions"}


def _names(path: Path) -> set[str]:
    """The names of the arrays of an .npz; none of what is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _read_files(folder: Path) -> Trajectories:
    paths = [folder] if folder.suffix == ".npz" else sorted(folder.glob("*.npz"))
    if not paths or not paths[0].is_file():
        raise DataError(
            f"{folder} holds no episodes: give a data set of Minari's, or write one .npz an "
            "episode with the arrays " + ", ".join(NAMES)
        )
    episodes = {path: _episode(path) for path in paths}
    observations, actions = (
        _space_of(episodes, name, folder) for name in ("observations", "actions")
    )
    several = f"{len(paths)} files, {paths[0].name} and so on"
    recipe = f"read from {several if len(paths) > 1 else paths[0].name}"
    for path, episode in episodes.items():
        with _naming(path):
            episode.require(observations, actions)
    return Trajectories([*episodes.values()], observations, actions, recipe=recipe)


def _space_of(episodes: Mapping[Path, Episode], name: str, folder: Path) -> Space:
    """The smallest space that holds the arrays of this name.

    Raises:
        DataError: a whole number that no count of possible values explains.
    """
    most = max(MOST_VALUES, sum(map(len, episodes.values())))
    for path, episode in episodes.items():
        rows = getattr(episode, name)
        if rows.ndim == 1 and rows.dtype.kind in "iu" and (rows >= most).any():
            step = int((rows >= most).argmax())
            raise DataError(
                f"{path}: {name} holds {rows[step]} at step {step}: values are numbered from 0, "
                f"and at most {most:,} are taken to be possible; number them without gaps"
            )
    arrays = [getattr(episode, name) for episode in episodes.values()]
    return Space.seen_in(arrays, f"the {name} in {folder}", action=name == "actions")


def _episode(path: Path) -> Episode:
    """The episode in a file."""
    try:
        arrays = _load(path)
    except READABLE as error:
        raise DamagedError(
            f"{path} cannot be read ({error}): it was cut short, or is no file of plain arrays "
            "(nothing is unpickled)"
        ) from error
    for name in NAMES:
        if name not in arrays:
            others = [other for other in arrays if other not in NAMES]
            raise DataError(
                f"{path} has no array '{name}', which every episode needs"
                + (f" ({nearest(name, others)})" if others else "")
                + f": it has {join_first(list(arrays))}"
            )
    with _naming(path):
        return Episode.of(arrays)


def _load(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it holds one array, without a name")
        return {name: archive[name] for name in archive.files}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of wrong data that begin with the file that they are in."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
