"""A folder of episodes is read as it is; what was damaged or left out is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import DataError
from everyformer.data.episodes import Episode, Space, read_trajectories
from everyformer.system.sealed import DamagedError


def arrays(steps: int, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "observations": random.standard_normal((steps + 1, 3)).astype(np.float32),
        "actions": random.integers(4, size=steps),
        "rewards": random.standard_normal(steps),
        "terminations": np.arange(steps) == steps - 1,
        "truncations": np.zeros(steps, bool),
    }


def bare(folder: Path, *episodes: dict[str, Any]) -> Path:
    """A folder of .npz, as a person writes it."""
    folder.mkdir(exist_ok=True)
    for number, episode in enumerate(episodes):
        np.savez(folder / f"walk-{number}.npz", **episode)
    return folder


def test_a_folder_of_npz_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    found = read_trajectories(bare(tmp_path, arrays(3), arrays(5) | {"notes": np.zeros(2)}))
    assert found.episodes == (Episode(**arrays(3)), Episode(**arrays(5)))
    assert found.observation_space == Space("box", "float32", (3,), low=(None,), high=(None,))
    assert found.action_space.count == 1 + max(int(each.actions.max()) for each in found.episodes)
    assert found.environment is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rewards": None, "reward": np.zeros(3)},
            r"no array 'rewards', .*mean 'reward'\?\): it has",
        ),
        (
            {"observations": None, "obs": np.zeros((4, 3))},
            r"no array 'observations'.*\(known: obs\)",
        ),
        ({"terminations": None}, "no array 'terminations', which every episode needs: it has"),
        ({"actions": np.zeros(4, int)}, "4 observations and 4 actions"),
        ({"rewards": np.array([0, 0, -1e39])}, r"-1e\+39 at step 2: .* at most 3.4e\+38 in size"),
        (
            {"rewards": np.array([-1e38, 3e38, 1e38])},
            r"the rewards from step 1 on add up to 4e\+38",
        ),
        ({"observations": np.array([[0], [1], [2], [1e200]])}, r"holds 1e\+200 at step 3: numbers"),
        ({"actions": np.array([0, -1, 2])}, "the actions hold -1 at step 1: from 0 to 3"),
        (
            {"actions": np.array([0, 65_536, 2])},
            "actions holds 65536 at step 1: .* most 65,536 are",
        ),
        ({"observations": np.zeros((4, 5), np.float32)}, r"shape \(5,\) a row: \(3,\) is needed"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    wrong = {name: each for name, each in (arrays(3) | change).items() if each is not None}
    with pytest.raises(DataError, match=rf"walk-1\.npz.*{message}"):
        read_trajectories(bare(tmp_path, arrays(3), wrong))


def test_numbers_may_be_large_and_whole_ones_as_many_as_steps(tmp_path: Path) -> None:
    large = {"observations": np.full((4, 3), 3e38), "rewards": np.array([3e38, -3e38, 3e38])}
    whole = {"observations": np.array([5, 1, 65_535, 2])}
    found = read_trajectories(bare(tmp_path / "large", arrays(3) | large))
    assert found.returns.tolist() == [3e38]
    assert (
        read_trajectories(bare(tmp_path / "a", arrays(3) | whole)).observation_space.size == 2**16
    )
    # where there are more steps, there may be more values
    steps = 70_000
    walk = arrays(steps) | {"observations": np.arange(steps + 1) % steps}
    found = read_trajectories(bare(tmp_path / "b", walk))
    assert found.observation_space.size == steps


@pytest.mark.parametrize("kept", [0, 300])
def test_a_cut_npz_is_named(kept: int, tmp_path: Path) -> None:
    path = bare(tmp_path, arrays(3), arrays(3)) / "walk-1.npz"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DamagedError, match=r"walk-1\.npz cannot be read .*cut short"):
        read_trajectories(tmp_path)


def test_a_single_array_is_no_episode(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DamagedError, match=r"a.npz cannot be read \(it holds one array, without"):
        read_trajectories(tmp_path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    bare(tmp_path, arrays(3) | {"actions": np.array([{}, {}, {}], dtype=object)})
    with pytest.raises(DamagedError, match="nothing is unpickled"):
        read_trajectories(tmp_path)


@pytest.mark.parametrize(
    "prepare",
    [lambda place: None, lambda place: place.write_text("x"), lambda place: place.mkdir()],
)
def test_a_place_without_episodes_is_told(prepare: Any, tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    with pytest.raises(DataError, match="data holds no episodes: give a data set of"):
        read_trajectories(tmp_path / "data")
