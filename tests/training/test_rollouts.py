"""A policy learns from what it did, and a run that is resumed anywhere is the undisturbed one."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import everyformer as ef
from everyformer.cli.playing import at_random
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError
from everyformer.core.tasks import POLICY
from everyformer.data.config import DataConfig
from everyformer.data.environments import EnvironmentDataset
from everyformer.data.load import load_dataset
from everyformer.models import ppo
from everyformer.models.policy import PolicyModel
from everyformer.rl import EnvironmentConfig, collect, recipe
from everyformer.rl.endless import EndlessRows
from everyformer.training import RunDirectory, evaluate, train
from everyformer.training.checkpoint import checkpoints
from everyformer.training.logging import read_metrics
from everyformer.training.optimiser import WeightAverage
from everyformer.training.returns import play_policy, played
from everyformer.training.rollouts import Rollouts, Turn
from everyformer.training.spec import RunSpec, build_run, preset
from helpers import build_model, close, shifted
from scripted import Scripted, scripted

TRACK, CART = "everyformer/MemoryTrack-v0", "CartPole-v1"
SHORT = "max_episode_steps=3"
POLICY_SIZES = {"horizon": 12, "segment": 4, "epochs": 2}
PENDULUM = DataConfig(env="Pendulum-v1", env_number=3, env_options=("max_episode_steps=5",))
MEMBERS = [row.name for row in ef.list_members(task=POLICY)]
SMALL: dict[str, dict[str, Any]] = {
    # so little that a turn overflows it
    "gtrxl": {"slots": 3}, "transformer-xl": {"slots": 3}, "aft-local": {"window": 3},
}  # fmt: skip


def rollouts(
    data: DataConfig, member: str = "gtrxl", size: int | None = None, **more: Any
) -> tuple[Rollouts, EnvironmentDataset]:
    dataset = load_dataset(data, POLICY)
    sizes: dict[str, Any] = {"width": 12, "heads": 2, "layers": 2, "max_length": 40}
    sizes |= {"policy": POLICY_SIZES, **SMALL.get(member, {}), **more}
    made = build_model(member, POLICY, **dataset.shape_options, **sizes)
    assert isinstance(made, PolicyModel)
    return Rollouts(shifted(made).train(), dataset, size or dataset.number), dataset


@pytest.mark.parametrize("member", MEMBERS)
def test_the_ratio_is_1_before_anything_is_learned(member: str) -> None:
    """Of every minibatch, so that episodes end anywhere and memories overflow; every other member
    chooses, the others give numbers."""
    data = (DataConfig(env=TRACK, env_number=3), PENDULUM)[MEMBERS.index(member) % 2]
    made, dataset = rollouts(data, member)
    model = made._model
    for step in range(3):
        batch = made.batch(dataset, step, 3, 0)
        outputs, values, _ = model.read(batch.inputs, made.of(0, 3), batch.reset)
        now = ppo.log_probability(outputs, batch.targets, model.log_std)
        close((now - batch.before).exp(), torch.ones_like(now), 1e-9)
        close(values, batch.values, 1e-9)


def test_every_row_is_learned_from_once_an_epoch() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=4), size=2)
    for epoch in range(3):
        found = [made.batch(dataset, epoch * 6 + n, 2, 0) for n in range(6)]
        seen = torch.cat([batch.values for batch in found]).flatten().sort().values
        assert made._turn is not None
        close(seen, made._turn.values.flatten().sort().values, 0.0)
    assert sum(made.counted(0) for made._step in range(12)) == 4 * 12


@pytest.mark.parametrize("numbers", [False, True], ids=["chosen", "numbers"])
def test_actions_are_drawn_by_the_seed_of_the_run_and_the_number_of_the_turn(
    numbers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same weights, in an environment that always shows the same."""

    class Moved(Scripted):
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    name = scripted(monkeypatch, make=Moved if numbers else Scripted)

    def turn(seed: int, number: int = 0) -> Turn:
        made, _ = rollouts(DataConfig(env=name, env_number=3))
        for n in range(number + 1):
            played = made._play(seed, n)
        return played

    one = turn(5)
    for other, same in ((turn(5), True), (turn(6), False), (turn(5, 1), False)):
        assert torch.equal(other.inputs, one.inputs)
        assert torch.equal(other.targets, one.targets) is same


@pytest.mark.parametrize("env", [TRACK, CART])
def test_an_end_is_worth_nothing_more_and_a_limit_of_time_what_would_follow(env: str) -> None:
    """With a critic that says 2 everywhere; the track ends by itself, the cart after 3 steps."""
    options = (SHORT,) if env == CART else ()
    made, dataset = rollouts(DataConfig(env=env, env_number=4, env_options=options))
    with torch.no_grad():
        made._model.critic.weight.zero_()
        made._model.critic.bias.fill_(2.0)
    made.batch(dataset, 0, 4, 0)
    turn = made._turn
    assert turn is not None
    last = turn.reset[:, 1:]
    assert last.any()
    for paid in turn.returns[:, :-1][last].tolist():
        if env == CART:
            assert paid == pytest.approx(1 + 0.99 * 2)
        else:
            assert paid in (pytest.approx(1), pytest.approx(-1), pytest.approx(-0.1 + 0.99 * 2))


def test_states_that_are_computed_anew_are_those_of_the_weights_of_now() -> None:
    policy = {**POLICY_SIZES, "recompute_memory": True}
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=3), policy=policy)
    made.batch(dataset, 0, 3, 0)
    assert made._turn is not None
    model, old = made._model, list(made._turn.states)
    shifted(model, 0.1)
    for step in range(1, 4):
        made.batch(dataset, step, 3, 0)
    first, new = old[0], made._turn.states
    whole = made._turn
    assert new[0] is first
    for segment in (1, 2):
        upto = segment * 4
        _, _, out = model.read(whole.inputs[:, :upto], first, whole.reset[:, :upto])
        after = zip(
            out.state.tensors(), new[segment].tensors(), old[segment].tensors(), strict=True
        )
        moved = False
        for wanted, found, before in after:
            close(found, wanted, 1e-9)
            moved |= found.is_floating_point() and not torch.equal(found, before)
        assert moved


def test_without_memory_a_policy_knows_the_present_alone() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=3), slots=0)
    batch = made.batch(dataset, 1, 3, 0)
    alone = made._model.read(batch.inputs.reshape(12, 1, 3), None, None)[1]
    close(alone.view(3, 4), batch.values, 1e-9)


def test_advantages_are_even_over_a_turn() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=4))
    made.batch(dataset, 0, 4, 0)
    assert made._turn is not None
    close(made._turn.advantages.mean(), torch.tensor(0.0).double(), 1e-9)
    close(made._turn.advantages.std(), torch.tensor(1.0).double(), 1e-6)


def test_values_stay_what_they_are_in_other_units() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=4))
    batch = made.batch(dataset, 0, 4, 0)
    model, state = made._model, made.of(0, 4)
    before = model.read(batch.inputs, state, batch.reset)[1]
    for size in (100.0, 3.0):
        model.scale_values(torch.full((2, 2), size).double())
        close(model.read(batch.inputs, state, batch.reset)[1], before, 1e-9)
    assert float(model.value_scale) > 3


def test_averaged_weights_keep_a_critic_in_the_unit_of_its_values() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=4))
    batch, model, state = made.batch(dataset, 0, 4, 0), made._model, made.of(0, 4)
    average = WeightAverage(model, 0.5)
    before = model.read(batch.inputs, state, batch.reset)[1]
    model.scale_values(torch.full((2, 2), 100.0).double())
    average.update(model)
    with average.applied(model):
        close(model.read(batch.inputs, state, batch.reset)[1], before, 1e-9)


def test_an_environment_that_no_seed_determines_begins_anew_and_says_so() -> None:
    rows, other = (EndlessRows(EnvironmentConfig(CART), 2) for _ in range(2))
    rows.begin(0)
    rows.step(np.array([0, 1]))
    saved = rows.arrays()
    saved["now"][1] += 1.0
    with pytest.warns(UserWarning, match="1 of 2 environments do not come to where they stood"):
        other.restore(saved)
    assert other.first.tolist() == [False, True]


def spec(member: str, **policy: Any) -> RunSpec:
    known = preset(member, POLICY)
    values = to_dict(known)
    values["data"] |= {"env": CART, "env_number": 2, "env_options": ["max_episode_steps=9"]}
    values["model"] |= {"width": 8, "layers": 1, "heads": 2}
    values["model"]["policy"] |= {"horizon": 8, "segment": 4, "epochs": 2, **policy}
    values["training"] |= {"steps": 9, "batch": 2, "checkpoint_every": 1, "keep": 30}
    values["training"] |= {"evaluate_sequences": 2, "log_every": 1}
    return from_dict(RunSpec, values, "", known)


def run(asked: RunSpec, out: Path, resume: bool = False, **training: Any) -> None:
    dataset = load_dataset(asked.data, POLICY)
    config = dataclasses.replace(asked.training, **training)
    with RunDirectory(out, resume=resume) as folder:
        train(build_run(asked, dataset), dataset, config, folder, resume=resume, show=False)


@pytest.mark.parametrize(("member", "recompute"), [("gtrxl", False), ("attention", True)])
def test_a_run_that_was_killed_anywhere_goes_on_bit_for_bit(
    tmp_path: Path, member: str, recompute: bool
) -> None:
    """After the last step of a turn (4), in the middle of one, and at the last step."""
    asked = spec(member, recompute_memory=recompute)
    run(asked, tmp_path / "whole")
    kept = checkpoints(tmp_path / "whole" / "checkpoints")
    for step in (1, 4, 6):
        part = tmp_path / f"from-{step}"
        shutil.copytree(tmp_path / "whole", part)
        for later in kept[step:]:
            shutil.rmtree(part / "checkpoints" / later.name)
        run(asked, part, resume=True)
        last = checkpoints(part / "checkpoints")[-1]
        assert last.name == kept[-1].name
        for name in ("model", "optimiser", "memory"):
            mine, other = (load_file(p / f"{name}.safetensors") for p in (last, kept[-1]))
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[key], other[key]) for key in other), (step, name)
        clocks = ("seconds", "tokens_per_second")
        rows = [
            [
                {k: v for k, v in row.items() if k not in clocks}
                for row in read_metrics(p / "metrics.jsonl")
            ]
            for p in (part, tmp_path / "whole")
        ]
        assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [({"batch": 3}, ConfigError, "--env.number 2 is no multiple"),
     ({"batch": 1}, CheckpointError, "--batch 2, not 1")],
)  # fmt: skip
def test_a_step_learns_from_whole_groups_of_environments(
    tmp_path: Path, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    run(spec("linear"), tmp_path / "run", steps=2)
    with pytest.raises(kind, match=said):
        run(spec("linear"), tmp_path / "run", resume=True, **change)


def test_layers_that_read_segments_otherwise_than_steps_are_refused() -> None:
    made, dataset = rollouts(DataConfig(env=TRACK, env_number=3), same_length="never")
    with pytest.raises(UnsupportedError, match=r"memory\.same-length always"):
        made.batch(dataset, 0, 3, 0)


def test_rows_that_are_restored_stand_and_go_on_where_they_were() -> None:
    chance = np.random.default_rng(0)
    rows, others = (EndlessRows(EnvironmentConfig(CART), 3) for _ in range(2))
    rows.begin(5)
    for moment in range(30):
        rows.step(chance.integers(2, size=3))
        if moment % 7 == 2:
            saved = rows.arrays()
            others = EndlessRows(EnvironmentConfig(CART), 3)
            others.restore(saved)
            assert np.array_equal(rows.now, others.now)
            assert np.array_equal(rows.first, others.first)
            ahead = chance.integers(2, size=(25, 3))
            going = EndlessRows(EnvironmentConfig(CART), 3)
            going.restore(saved)
            for actions in ahead:
                mine, theirs = others.step(actions), going.step(actions)
                assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
    again = EndlessRows(EnvironmentConfig(CART), 3)
    again.restore(rows.arrays())
    for actions in chance.integers(2, size=(40, 3)):
        assert all(
            np.array_equal(a, b)
            for a, b in zip(rows.step(actions), again.step(actions), strict=True)
        )
    assert (rows.finished, list(rows.recent)) == (again.finished, list(again.recent))


def test_each_seeds_training_is_measured_by_episodes_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a mean over seeds shows the luck of episodes too, and `eval` plays others."""
    asked = []

    def play(model: Any, environment: Any, episodes: int, seed: int, **how: Any) -> Any:
        asked.append(seed)
        return play_policy(model, environment, episodes, seed, **how)

    monkeypatch.setattr(evaluate, "play_policy", play)
    known = spec("gtrxl")
    dataset = load_dataset(known.data, POLICY)
    for seed in (0, 3):
        config = dataclasses.replace(known.training, seed=seed, steps=1)
        train(build_run(known, dataset), dataset, config, show=False)
    assert len({0, 3, *asked}) == 4


def test_random_play_is_drawn_by_the_seed_that_is_given() -> None:
    environment = EnvironmentConfig(TRACK)
    some = collect(environment, recipe("random", environment), 4)
    rows = [at_random([(None, some)], seed) for seed in (0, 5)]
    for row, seed in zip(rows, (0, 5), strict=True):
        expected = played(collect(environment, recipe("random", environment), 4, seed))
        assert {**row, "target": None} == {**expected, "target": None}
    assert rows[0] != rows[1]
