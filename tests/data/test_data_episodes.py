"""Episodes as data: windows, returns-to-go, what is held out, kept and refused."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, DataError, MissingExtraError
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.data.episodes import Episode, Space, Trajectories
from everyformer.data.episodes.kind import EpisodeDataset, as_states, episode_dataset, state_shape
from everyformer.genes.model_options import EpisodeShape
from recorded import as_files, as_minari

Load = Callable[..., Dataset]
VECTOR = Space("box", "float32", (2,), low=(None,), high=(None,))
CHOICE = Space("discrete", "int64", count=5)
BOUNDED = Space("box", "float32", (2,), low=(-2.0, 0.0), high=(2.0, 1.0))
LENGTHS = (7, 2, 12, 4, 1, 9)


def episode(number: int, steps: int, acted: Space = CHOICE) -> Episode:
    """Observations (number, step), rewards of a whole number by step."""
    last = np.arange(steps) == steps - 1
    seen = np.stack((np.full(steps + 1, number), np.arange(steps + 1)), 1).astype(np.float32)
    done = np.arange(steps) % 5
    if not acted.discrete:
        done = np.stack((done, done), 1).astype(np.float32) / 8
    rewards = np.arange(1.0, steps + 1) * (number + 1)
    return Episode(seen, done, rewards, last, np.zeros(steps, bool))


def trajectories(lengths: tuple[int, ...] = LENGTHS, acted: Space = CHOICE) -> Trajectories:
    made = [episode(number, steps, acted) for number, steps in enumerate(lengths)]
    return Trajectories(made, VECTOR, acted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return as_files(trajectories(), tmp_path / "walks")


@pytest.fixture
def loaded(load: Load) -> Callable[..., EpisodeDataset]:
    def made(source: Any, **options: Any) -> EpisodeDataset:
        result = load(source, context=options.pop("context", 5), **options)
        assert isinstance(result, EpisodeDataset)
        return result

    return made


Loaded = Callable[..., EpisodeDataset]


def test_a_training_row_is_a_window_of_one_episode_padded_on_the_left(
    loaded: Loaded, folder: Path
) -> None:
    data = loaded(folder, validation=0.34)
    assert (data.task, data.length, len(data.train), len(data.held_out)) == ("decision", 15, 4, 2)
    batch = data.train_batch(3, 64, 0)
    assert batch.padding_mask is not None
    assert batch.returns is not None
    assert batch.actions is not None
    assert batch.timesteps is not None
    for row in range(64):
        number = int(batch.inputs[row, -1, 0])
        count = int(batch.padding_mask[row].sum())
        begin = int(batch.timesteps[row, -1]) + 1 - count
        steps = torch.arange(begin, begin + count)
        assert batch.padding_mask[row].tolist() == [False] * (5 - count) + [True] * count
        assert count == min(5, LENGTHS[number] - begin)
        assert batch.inputs[row, -count:].tolist() == [[number, t] for t in steps.tolist()]
        assert torch.equal(batch.timesteps[row, -count:], steps)
        assert torch.equal(batch.actions[row, -count:], steps % 5)
        # of the whole episode, the reward of the step itself included
        rewards = torch.arange(1, LENGTHS[number] + 1) * (number + 1)
        assert batch.returns[row, -count:].tolist() == [int(rewards[t:].sum()) for t in steps]
        assert batch.targets[row].tolist() == [-100] * (5 - count) + (steps % 5).tolist()
        for tensor in (batch.inputs, batch.returns, batch.actions, batch.timesteps):
            assert not tensor[row, : 5 - count].any()
    assert batch.tokens == 64 * 5
    assert batch.scored == int(batch.padding_mask.sum())


def test_every_step_of_the_training_part_begins_as_many_windows_as_any_other(
    loaded: Loaded, folder: Path
) -> None:
    """So an episode is drawn in proportion to its length, and its start evenly."""
    data = loaded(folder, validation=0.34)
    total = int(data.lengths[data.train].sum())
    counts: dict[tuple[int, int], int] = {}
    draws = 40 * 500
    for step in range(40):
        batch = data.train_batch(step, 500, 7)
        assert batch.padding_mask is not None
        assert batch.timesteps is not None
        first = batch.padding_mask.long().argmax(1, keepdim=True)
        begins = batch.timesteps.gather(1, first)[:, 0].tolist()
        for key in zip(batch.inputs[:, -1, 0].int().tolist(), begins, strict=True):
            counts[key] = counts.get(key, 0) + 1
    assert set(counts) == {(int(e), t) for e in data.train for t in range(LENGTHS[e])}
    spread = (draws / total) ** 0.5
    assert max(abs(count - draws / total) for count in counts.values()) < 5 * spread


@pytest.mark.parametrize("limit", [None, 3])
def test_every_held_out_step_is_scored_once(
    loaded: Loaded, folder: Path, limit: int | None
) -> None:
    data = loaded(folder, validation=0.5)
    seen = []
    for batch in data.validation_batches(2, limit):
        assert batch.padding_mask is not None
        seen += [tuple(map(int, state)) for state in batch.inputs[batch.padding_mask].tolist()]
    every = [(int(e), t) for e in data.held_out for t in range(LENGTHS[e])]
    assert len(seen) == len(set(seen))
    assert (seen == every) if limit is None else (set(seen) < set(every))
    assert set(data.train) & set(data.held_out) == set()


def test_a_delayed_return_is_whole_until_the_end(loaded: Loaded, folder: Path) -> None:
    plain, late = loaded(folder, validation=1.0), loaded(folder, validation=1.0, delayed=True)
    for one, other in zip(plain.validation_batches(99), late.validation_batches(99), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert one.returns is not None
        assert one.padding_mask is not None
        assert other.returns is not None
    for number, steps in enumerate(LENGTHS):
        whole = (number + 1) * steps * (steps + 1) / 2
        begin = sum(LENGTHS[:number])
        assert late.returns_to_go[begin : begin + steps].tolist() == [whole] * steps
        assert plain.returns_to_go[begin] == whole
        assert plain.returns_to_go[begin + steps - 1] == (number + 1) * steps
    assert late.summary()["delayed"]
    assert not plain.summary()["delayed"]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 1.0])
def test_the_best_share_is_whole_episodes_of_the_training_part_until_the_next_is_too_long(
    loaded: Loaded, folder: Path, share: float
) -> None:
    every, best = loaded(folder, validation=0.34), loaded(folder, validation=0.34, best=share)
    returns = {n: (n + 1) * s * (s + 1) / 2 for n, s in enumerate(LENGTHS)}
    budget = share * sum(LENGTHS[n] for n in every.train)
    kept: list[int] = []
    for number in sorted(every.train, key=lambda n: -returns[n]):
        if sum(LENGTHS[n] for n in (*kept, number)) > budget:
            break
        kept.append(int(number))
    top = max(every.train, key=lambda n: returns[n])
    assert best.train.tolist() == sorted(kept or [int(top)])
    # the same held-out part, numbers and fingerprint: losses can be compared
    assert best.held_out.tolist() == every.held_out.tolist()
    assert (best.shape, best.fingerprint) == (every.shape, every.fingerprint)
    drawn = best.train_batch(0, 50, 0).inputs[:, -1, 0]
    assert set(drawn.int().tolist()) <= set(best.train.tolist())


def known(made: Trajectories, **options: Any) -> EpisodeDataset:
    """Data of trajectories whose spaces are known."""
    return episode_dataset(made, DataConfig(context=5, **options), "decision", "t")


def test_a_model_is_told_what_the_training_part_shows() -> None:
    made = trajectories((5, 5, 9), BOUNDED)
    data = known(made, validation=0.34)
    shape = from_dict(EpisodeShape, data.model_options["episodes"])
    seen = np.concatenate([made.episodes[n].observations[:-1] for n in data.train])
    assert np.allclose(shape.state_mean, seen.mean(0))
    assert np.allclose(shape.state_std, np.maximum(seen.std(0), 0) + 1e-6, atol=1e-6)
    most = max(made.episodes[n].total for n in data.train)
    assert (shape.scale, shape.context, shape.longest) == (most, 5, 9)
    assert (shape.low, shape.high, shape.actions) == ((-2.0, 0.0), (2.0, 1.0), 2)
    assert known(made, scale=8.0).shape.scale == 8
    free = dataclasses.replace(made, action_space=dataclasses.replace(BOUNDED, low=(-2.0, None)))
    assert known(free).shape.low == ()


def test_observations_are_read_as_numbers_whole_numbers_or_pictures() -> None:
    rng = np.random.default_rng(0)
    for space, shape in (
        (Space("box", "float32", (4,)), (4,)), (Space("box", "float32", (2, 3)), (6,)),
        (Space("box", "float64", ()), (1,)), (CHOICE, ()),
        (Space("box", "uint8", (8, 9, 3)), (3, 8, 9)),
        (Space("box", "uint8", (4, 84, 84)), (4, 84, 84)),
        (Space("box", "uint8", (8, 9)), (1, 8, 9)), (Space("box", "uint8", (7,)), (7,)),
    ):  # fmt: skip
        rows = rng.integers(0, 5, (3, *space.shape)).astype(space.dtype)
        states = as_states(rows, state_shape(space))
        assert states.shape == (3, *shape)
        assert states.sum() == rows.sum()
    picture = as_states(rows := rng.integers(0, 255, (1, 8, 9, 3)), (3, 8, 9))
    assert picture[0, 2, 7, 5] == rows[0, 7, 5, 2]


def test_folders_files_and_minari_are_read_alike(
    loaded: Loaded, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    as_minari(trajectories(), "walks/mine-v0")
    for source in ("minari:walks/mine-v0", tmp_path / "minari" / "walks" / "mine-v0"):
        assert loaded(source).fingerprint == loaded(folder).fingerprint
    alone = loaded(folder / "0002.npz", validation=1.0)
    assert alone.lengths.tolist() == [12]


def one(place: Path, **changes: Any) -> Path:
    """An episode of three steps in a file, some of its arrays others."""
    place.mkdir(exist_ok=True)
    arrays = episode(0, 3).arrays() | changes
    np.savez(
        place / "a.npz", **{name: array for name, array in arrays.items() if array is not None}
    )
    return place


SEEN = np.zeros((4, 2), np.float32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"observations": SEEN[1:]}, "there are 3 observations and 3 actions: there must be one"),
    ({"rewards": np.array([1, np.nan, 2])}, "rewards holds nan at step 1: numbers must be finite"),
    ({"rewards": np.zeros(2)}, "rewards has the shape (2,): there must be one number for each"),
    ({"actions": np.zeros(0, int)}, "the episode is empty: it needs one action at least"),
    ({"rewards": None}, "has no array 'rewards', which every episode needs"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), WRONG)
def test_wrong_episodes_are_refused_with_their_file(
    load: Load, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(one(tmp_path / "wrong", **changes))
    assert str(tmp_path / "wrong" / "a.npz") in str(caught.value)
    assert sentence in str(caught.value)


OTHERS: list[tuple[str | None, dict[str, Any], type[Exception], str]] = [
    (None, {}, DataError, "holds one episode alone, so that none can be held out: give two or"),
    ("lm", {}, DataError, "holds episodes, which the task lm cannot use; they are for decision"),
    (None, {"length": 9}, ConfigError, "`data.length` has no meaning for episodes"),
    (None, {"tokenizer": "chars"}, ConfigError, "`data.tokenizer` has no meaning for episodes"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "options", "kind", "sentence"), OTHERS)
def test_options_and_tasks_that_do_not_fit_are_refused(
    load: Load, tmp_path: Path, task: str | None, options: dict[str, Any], kind: type[Exception],
    sentence: str,
) -> None:  # fmt: skip
    with pytest.raises(kind) as caught:
        load(one(tmp_path / "one"), task, **options)
    assert sentence in str(caught.value)


def test_what_is_no_episode_and_a_missing_package_are_refused(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="nothing holds no episodes: give a data set of"):
        load(tmp_path / "nothing", "decision")
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"everyformer\[rl\]"):
        load("minari:walks/mine-v0")


@pytest.mark.parametrize("acted", [CHOICE, BOUNDED], ids=["choices", "numbers"])
def test_a_constant_action_costs_what_the_training_part_says(acted: Space) -> None:
    data = known(trajectories(acted=acted))
    train, held_out = (
        np.concatenate([episode(n, LENGTHS[n], acted).actions for n in part])
        for part in (data.train, data.held_out)
    )
    if acted.discrete:
        # B = 4 counts are spread over the five actions; with few rows equal chances may be better
        p = (np.bincount(train, minlength=5) + 4 / 5) / (len(train) + 4)
        expected = min(math.log(5), -np.log(p[held_out]).mean())
    else:
        # in units of half the range: 2 of the first number, 0.5 of the second
        expected = (((held_out - train.mean(0)) / [2.0, 0.5]) ** 2).mean()
    assert data.counting == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("acted", [CHOICE, BOUNDED], ids=["choices", "numbers"])
def test_where_all_episodes_are_held_out_no_constant_action_is_known(acted: Space) -> None:
    data = known(trajectories(acted=acted), validation=1.0)
    assert len(data.held_out) == len(LENGTHS)
    assert data.counting is None
