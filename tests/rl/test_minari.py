"""Minari's data sets come back equal, and can be read by Minari itself."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

minari = pytest.importorskip("minari")
gymnasium = pytest.importorskip("gymnasium")

from everyformer.core.errors import (  # noqa: E402
    ConfigError,
    DataError,
    MissingExtraError,
    UnsupportedError,
)
from everyformer.rl import (  # noqa: E402
    EnvironmentConfig,
    Episode,
    Space,
    Trajectories,
    collect,
    read_trajectories,
    recipe,
    write_trajectories,
)
from everyformer.system.sealed import DamagedError  # noqa: E402


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


def recorded(environment: EnvironmentConfig) -> Trajectories:
    return collect(environment, recipe("mixed", environment), 5, seed=1)


def by_hand(observations: np.ndarray, space: Space) -> Trajectories:
    """One episode of an environment that nobody knows."""
    last = np.arange(len(observations) - 1) == len(observations) - 2
    episode = Episode(observations, last * 2, last * 1.5, last, last & False)
    return Trajectories([episode], space, Space("discrete", "int64", count=3), None, "by hand")


@pytest.mark.parametrize(
    "environment",
    [
        EnvironmentConfig("CartPole-v1", (1, 3)),
        EnvironmentConfig("Pendulum-v1", (), {"max_episode_steps": 20}),
        EnvironmentConfig("everyformer/GraphPath-v0", (), {"graph": 3}),
        EnvironmentConfig("everyformer/TMaze-v0", (2,), {"length": 4}),
    ],
    ids=str,
)
def test_what_was_written_is_read_by_id_and_by_folder(environment: EnvironmentConfig) -> None:
    data = recorded(environment)
    folder = write_trajectories(data, "minari:ours/mixed-v0")
    assert read_trajectories("minari:ours/mixed-v0", environment) == data
    assert read_trajectories(folder) == read_trajectories(folder / "data") == data


def test_pictures_are_kept_without_loss() -> None:
    pictures = np.random.default_rng(0).integers(256, size=(6, 40, 36, 3), dtype=np.uint8)
    data = by_hand(pictures, Space("box", "uint8", (40, 36, 3), low=(0.0,), high=(255.0,)))
    write_trajectories(data, "minari:pictures-v0")
    assert read_trajectories("minari:pictures-v0") == data


def test_minari_reads_what_we_write() -> None:
    data = recorded(EnvironmentConfig("everyformer/TMaze-v0", (2,), {"length": 4}))
    write_trajectories(data, "minari:ours/maze-v1")
    dataset = minari.load_dataset("ours/maze-v1")
    assert (dataset.total_episodes, dataset.total_steps) == (5, data.statistics.steps)
    for theirs, mine in zip(dataset, data.episodes, strict=True):
        for name, array in mine.arrays().items():
            np.testing.assert_array_equal(getattr(theirs, name), array)
    again = dataset.recover_environment()
    assert again.unwrapped.length == 4
    assert again.reset(seed=data.episodes[0].seed)[0].tolist() == data.episodes[0].observations[
        0
    ].tolist()  # fmt: skip
    assert dataset.storage.metadata["description"] == data.recipe
    assert "ours/maze-v1" in minari.list_local_datasets()


def test_what_others_recorded_is_read() -> None:
    """A set that Minari made itself, of an environment with a wrapper that we cannot describe."""
    from minari.data_collector import EpisodeBuffer

    steps = np.arange(3)
    buffers = [
        EpisodeBuffer(
            observations=np.ones((4, 4), np.float32), actions=steps % 2, seed=seed,
            rewards=list(map(float, steps)), terminations=[False] * 3, truncations=[False] * 3,
        )
        for seed in (None, 4)
    ]  # fmt: skip
    pole = gymnasium.make("CartPole-v1")
    for name, environment, known in (
        ("a-v0", pole, EnvironmentConfig("CartPole-v1")),
        ("b-v0", gymnasium.wrappers.FlattenObservation(pole), None),
    ):
        with pytest.warns(UserWarning, match="is set to None"):
            minari.create_dataset_from_buffers(
                name, buffers, env=environment, observation_space=pole.observation_space
            )
        found = read_trajectories(f"minari:{name}")
        assert found.environment == known
        assert found.recipe == f"Minari's {name}"
        assert [episode.seed for episode in found.episodes] == [None, 4]
        assert found.returns.tolist() == [3, 3]


@pytest.mark.parametrize("name", ["maze", "maze-vx", "a b-v0", "../maze-v0", ""])
def test_an_id_of_another_form_is_refused(name: str) -> None:
    data = by_hand(np.arange(4) % 3, Space("discrete", "int64", count=3))
    with pytest.raises(ConfigError, match=r"is no id of Minari's: write it as .*-vN"):
        write_trajectories(data, f"minari:{name}")


def test_an_id_that_is_taken_is_not_written_over() -> None:
    data = by_hand(np.arange(4) % 3, Space("discrete", "int64", count=3))
    write_trajectories(data, "minari:maze-v0")
    with pytest.raises(ConfigError, match=r"has a data set 'maze-v0' already, in .*: raise its"):
        write_trajectories(data, "minari:maze-v0")
    assert read_trajectories("minari:maze-v0") == data


def test_what_is_not_on_this_machine_is_not_downloaded() -> None:
    with pytest.raises(DataError, match=r"there is none on this machine.*minari download pole-v0"):
        read_trajectories("minari:pole-v0")
    write_trajectories(
        by_hand(np.arange(4) % 3, Space("discrete", "int64", count=3)), "minari:poles-v0"
    )
    with pytest.raises(DataError, match=r"did you mean 'poles-v0'\?"):
        read_trajectories("minari:pole-v0")


def test_a_set_of_another_environment_is_refused() -> None:
    write_trajectories(recorded(EnvironmentConfig("everyformer/TMaze-v0")), "minari:maze-v0")
    with pytest.raises(DataError, match="of everyformer/TMaze-v0, and CartPole-v1 is wanted"):
        read_trajectories("minari:maze-v0", EnvironmentConfig("CartPole-v1"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: (data / "main_data.hdf5").unlink(),
        lambda data: (data / "metadata.json").write_text("{}"),
        lambda data: _half(data / "main_data.hdf5"),
    ],
)
def test_a_damaged_set_is_named(damage: Any) -> None:
    folder = write_trajectories(
        recorded(EnvironmentConfig("everyformer/TMaze-v0")), "minari:maze-v0"
    )
    damage(folder / "data")
    with pytest.raises(DamagedError, match=r"maze-v0/data cannot be read .*cut short or damaged"):
        read_trajectories("minari:maze-v0")


def _half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", np.inf, "episode 3: rewards holds inf at step 1: numbers must be finite"),
        ("actions", 4, "episode 3: the actions hold 4 at step 1: from 0 to 3"),
    ],
)
def test_a_wrong_number_is_named_with_its_episode_and_step(
    name: str, value: float, message: str
) -> None:
    import h5py

    folder = write_trajectories(
        recorded(EnvironmentConfig("everyformer/TMaze-v0")), "minari:maze-v0"
    )
    with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
        file["episode_3"][name][1] = value
    with pytest.raises(DataError, match=f"maze-v0: {message}"):
        read_trajectories("minari:maze-v0")


def test_wrong_arrays_and_spaces_of_others_are_refused(root: Path) -> None:
    from minari.dataset.minari_storage import MinariStorage

    pair = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    for name, observed, message, kind in (
        ("a-v0", pair, "the observations of a-v0 are Dict", UnsupportedError),
        ("b-v0", gymnasium.spaces.Discrete(9), "b-v0: .* 3 observations and 3", DataError),
    ):
        (root / name / "data").mkdir(parents=True)
        storage = MinariStorage.new(root / name / "data", observed, gymnasium.spaces.Discrete(2))
        storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
        rows: Any = np.arange(3)
        storage.update_episodes(
            [
                minari.data_collector.EpisodeBuffer(
                    observations={"a": rows} if observed is pair else rows, actions=rows % 2,
                    rewards=[0.0] * 3, terminations=[False] * 3, truncations=[False] * 3,
                )
            ]
        )  # fmt: skip
        with pytest.raises(kind, match=message):
            read_trajectories(f"minari:{name}")


def test_a_write_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minari.dataset import minari_storage

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(minari_storage.MinariStorage, "update_metadata", full)
    data = by_hand(np.arange(4) % 3, Space("discrete", "int64", count=3))
    with pytest.raises(Exception, match="the disk is full"):
        write_trajectories(data, "minari:maze-v0")
    assert not [path for path in root.rglob("*") if path.is_file()]
    shutil.rmtree(root)


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"'minari'.*everyformer\[rl\]"):
        read_trajectories("minari:maze-v0")
