"""The example of proximal policy optimisation: advantages, ratios, and a run that is resumed."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributions import Categorical

pytest.importorskip("gymnasium")

FILE = Path(__file__).parents[2] / "examples" / "ppo_gtrxl.py"
SMALL = ("--envs", "4", "--horizon", "32", "--minibatches", "2", "--width", "8", "--slots", "8")
pytestmark = pytest.mark.full("an example, which the library does not need")


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_gtrxl", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(ppo: ModuleType, ended: list[list[int]], cut: list[list[int]]) -> Any:
    """A rollout of random numbers whose episodes end where these say."""
    shape = len(ended), len(ended[0])
    rows = dict.fromkeys(ppo.Rollout._fields, torch.zeros(shape))
    ends = {"ended": torch.tensor(ended).bool(), "cut": torch.tensor(cut).bool()}
    return ppo.Rollout(**rows | {"value": torch.randn(shape), "reward": torch.randn(shape)} | ends)


def test_advantages_are_discounted_sums_of_errors_within_an_episode(ppo: ModuleType) -> None:
    """An end is worth nothing more; what a limit of time cut, what is expected of its last
    observation; nothing of the next episode counts."""
    torch.manual_seed(0)
    r = drawn(ppo, [[0, 0, 1, 0, 0, 0, 0], [0] * 7], [[0] * 7, [0, 1, 0, 0, 0, 0, 1]])
    last, gamma, lam = torch.randn(2), 0.9, 0.8
    found = ppo.advantages(r, last, gamma, lam)
    for row in range(2):
        values = [*r.value[row].tolist(), float(last[row])]
        for t in range(7):
            total, weight = 0.0, 1.0
            for n in range(t, 7):
                after = 0.0 if r.ended[row, n] else values[n + 1]
                total += weight * (float(r.reward[row, n]) + gamma * after - values[n])
                weight *= gamma * lam
                if r.ended[row, n] or r.cut[row, n]:
                    break
            assert float(found[row, t]) == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("member", ["gtrxl", "transformer-xl", "linear", "attention"])
def test_what_is_learned_from_is_what_was_done(ppo: ModuleType, member: str) -> None:
    """Read at once, over ends of episodes, every action has the probability that it had; the step
    after an end resets, means nothing, and pays nothing."""
    args = ppo.parse([*SMALL, "--member", member])
    torch.manual_seed(1)
    envs = ppo.make(args)
    player = ppo.Player(ppo.Agent(4, 2, args), envs, args)
    player.begin(0)
    player.rollout()
    rows, began, _ = player.rollout()
    assert (rows.ended | rows.cut).any()
    assert torch.equal(~rows.valid[:, 1:], (rows.ended | rows.cut)[:, :-1])
    assert torch.equal(rows.first[:, 1:], ~rows.valid[:, :-1])
    assert (rows.reward[~rows.valid] == 0).all()
    assert (rows.reward[rows.valid] == args.scale).all()
    # new episodes begin near the middle
    assert (rows.seen[rows.first].abs() <= 0.05).all()
    logits, value, _ = player.agent(rows.seen, began, rows.first)
    again = Categorical(logits=logits).log_prob(rows.action)
    torch.testing.assert_close(again, rows.before, atol=1e-5, rtol=0)
    torch.testing.assert_close(value, rows.value, atol=1e-5, rtol=0)


def test_a_run_that_is_resumed_goes_on_bit_for_bit(
    ppo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    words = [*SMALL, "--steps", "1024", "--save-every", "3", "--out"]
    whole = ppo.main([*words, str(tmp_path / "whole")])
    ppo.main([*words, str(tmp_path / "parts"), "--stop-after", "5"])
    parts = ppo.main([*words, str(tmp_path / "parts"), "--resume"])
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, parts.state_dict()[name])
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    rows = [json.loads(line) for line in logs[0].splitlines()]
    assert [row["steps"] for row in rows] == [128 * n for n in range(1, 9)]
    with pytest.raises(SystemExit, match="was made with other options"):
        ppo.main([*words, str(tmp_path / "parts"), "--resume", "--lr", "0.1"])
    assert torch.get_num_threads() == threads
