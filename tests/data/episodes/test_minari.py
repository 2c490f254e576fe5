"""Minari's data sets are read as Minari made them; what is damaged or of other kinds is named."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

minari = pytest.importorskip("minari")
gymnasium = pytest.importorskip("gymnasium")

from everyformer.core.errors import (  # noqa: E402
    DataError,
    MissingExtraError,
    UnsupportedError,
)
from everyformer.data.episodes import Episode, Space, Trajectories, read_trajectories  # noqa: E402
from everyformer.system.sealed import DamagedError  # noqa: E402
from recorded import as_minari  # noqa: E402

THREE = Space("discrete", "int64", count=3)
BOUNDED = Space("box", "float32", (2,), low=(-1.0, 0.0), high=(1.0, 2.0))
HALF = Space("box", "float32", (4,), low=(-2.0, None, 0.0, None), high=(2.0, None, 1.0, None))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


def drawn(observed: Space = THREE, acted: Space = THREE, environment: Any = None) -> Trajectories:
    """Episodes of 5, 1 and 3 steps, of random rows of these spaces."""
    random = np.random.default_rng(1)

    def rows(space: Space, count: int) -> np.ndarray:
        high = 2 if space.count is None else space.count
        return random.integers(high, size=(count, *space.shape)).astype(space.dtype)

    made = []
    for steps in (5, 1, 3):
        last = np.arange(steps) == steps - 1
        arrays = rows(observed, steps + 1), rows(acted, steps), random.standard_normal(steps)
        made.append(Episode(*arrays, last, last & False))
    return Trajectories(made, observed, acted, environment, "Minari's ours/walks-v0")


@pytest.mark.parametrize(
    "data",
    [
        drawn(), drawn(HALF, BOUNDED),
        drawn(HALF, Space("discrete", "int64", count=2), "CartPole-v1"),
    ],
    ids=["numbers", "reals", "pole"],
)  # fmt: skip
def test_what_minari_made_is_read_by_id_and_by_folder(data: Trajectories, root: Path) -> None:
    as_minari(data, "ours/walks-v0")
    folder = root / "ours" / "walks-v0"
    assert read_trajectories("minari:ours/walks-v0") == data
    assert read_trajectories(folder) == read_trajectories(folder / "data") == data


def test_a_set_of_an_earlier_version_keeps_its_recipe(root: Path) -> None:
    made = as_minari(drawn(), "ours/walks-v0")
    made.storage.update_metadata({"everyformer": {"recipe": "random walks", "seed": 3}})
    assert read_trajectories("minari:ours/walks-v0").recipe == "random walks"


def test_what_is_not_on_this_machine_is_not_downloaded() -> None:
    with pytest.raises(DataError, match=r"there is none on this machine.*minari download pole-v0"):
        read_trajectories("minari:pole-v0")
    as_minari(drawn(), "poles-v0")
    with pytest.raises(DataError, match=r"did you mean 'poles-v0'\?"):
        read_trajectories("minari:pole-v0")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: (data / "main_data.hdf5").unlink(),
        lambda data: (data / "metadata.json").write_text("{}"),
        lambda data: _half(data / "main_data.hdf5"),
    ],
)
def test_a_damaged_set_is_named(damage: Any, root: Path) -> None:
    as_minari(drawn(), "maze-v0")
    damage(root / "maze-v0" / "data")
    with pytest.raises(DamagedError, match=r"maze-v0/data cannot be read .*cut short or damaged"):
        read_trajectories("minari:maze-v0")


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", np.inf, "episode 2: rewards holds inf at step 1: numbers must be finite"),
        ("actions", 4, "episode 2: the actions hold 4 at step 1: from 0 to 2"),
    ],
)
def test_a_wrong_number_is_named_with_its_episode_and_step(
    name: str, value: float, message: str, root: Path
) -> None:
    import h5py

    as_minari(drawn(), "maze-v0")
    with h5py.File(root / "maze-v0" / "data" / "main_data.hdf5", "r+") as file:
        file["episode_2"][name][1] = value
    with pytest.raises(DataError, match=f"maze-v0: {message}"):
        read_trajectories("minari:maze-v0")


SPACES = gymnasium.spaces
TWO, PAIR = SPACES.Discrete(2), SPACES.Dict({"a": SPACES.Discrete(2)})
WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    (PAIR, TWO, UnsupportedError,
     r"the observations of a-v0 are Dict.*; only Discrete and Box are supported: bring them into"),
    (SPACES.Discrete(9), TWO, DataError, "a-v0: .* 3 observations and 3"),
    (SPACES.Discrete(9, start=1), TWO, UnsupportedError,
     "the observations of a-v0 are numbered from 1; only those numbered from 0 are supported"),
    (TWO, SPACES.MultiBinary(1), UnsupportedError,
     r"the actions of a-v0 are MultiBinary.*; only Discrete and Box of one dimension, of reals"),
    (TWO, SPACES.Box(0, 9, (1,), np.int64), UnsupportedError, "the actions of a-v0 are Box"),
    (TWO, SPACES.Box(0, 1, (1, 1)), UnsupportedError, "the actions of a-v0 are Box"),
]  # fmt: skip


@pytest.mark.parametrize(("observed", "acted", "kind", "message"), WRONG)
def test_wrong_arrays_and_spaces_of_others_are_refused(
    observed: Any, acted: Any, kind: type[Exception], message: str, root: Path
) -> None:
    from minari.dataset.minari_storage import MinariStorage

    (root / "a-v0" / "data").mkdir(parents=True)
    storage = MinariStorage.new(root / "a-v0" / "data", observed, acted)
    storage.update_metadata({"dataset_id": "a-v0", "minari_version": minari.__version__})
    rows: Any = np.arange(3)
    storage.update_episodes(
        [
            minari.data_collector.EpisodeBuffer(
                observations={"a": rows} if observed is PAIR else rows,
                actions=np.zeros((3, *acted.shape), acted.dtype), rewards=[0.0] * 3,
                terminations=[False] * 3, truncations=[False] * 3,
            )
        ]
    )  # fmt: skip
    with pytest.raises(kind, match=message):
        read_trajectories("minari:a-v0")


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"'minari'.*everyformer\[rl\]"):
        read_trajectories("minari:maze-v0")
