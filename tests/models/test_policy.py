"""Proximal policy optimisation: advantages and losses by hand, and what a policy refuses."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.tasks import POLICY
from everyformer.models import ppo
from everyformer.models.policy import PolicyModel
from helpers import build_model, close, draw, shifted

STEPS, ROWS, GAMMA, TRACE = 7, 3, 0.9, 0.8


def model(member: str = "gtrxl", discrete: bool = True, **more: Any) -> PolicyModel:
    shape = {"state": (3,), "actions": 4, "discrete": discrete}
    sizes: dict[str, Any] = {"width": 12, "heads": 2, "layers": 2, "max_length": 40, **more}
    made = build_model(member, POLICY, episodes=shape, **sizes)
    assert isinstance(made, PolicyModel)
    return shifted(made)


def literal_advantage(delta: Tensor, over: Tensor, t: int) -> float:
    """sum_l (gamma lambda)^l delta_{t+l}, up to the step that ends the episode."""
    total = 0.0
    for n in range(t, len(delta)):
        total += (GAMMA * TRACE) ** (n - t) * float(delta[n])
        if over[n]:
            break
    return total


def test_advantages_are_discounted_sums_of_errors_up_to_the_episodes_end() -> None:
    rewards, values, following = (draw(STEPS, ROWS, seed=n) for n in (1, 2, 3))
    over = draw(STEPS, ROWS, seed=4) > 0.5
    found = ppo.advantages(rewards, values, following, over, GAMMA, TRACE)
    delta = rewards + GAMMA * following - values
    for row in range(ROWS):
        for t in range(STEPS):
            wanted = literal_advantage(delta[:, row], over[:, row], t)
            assert float(found[t, row]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.0, 2.0, -2.0), (1.1, 2.0, -2.2), (1.5, 2.0, -2.4), (0.5, 2.0, -1.0),
     (1.5, -2.0, 3.0), (0.5, -2.0, 1.6), (0.9, -2.0, 1.8)],
)  # fmt: skip
def test_the_surrogate_stops_rewarding_beyond_the_clip(
    ratio: float, advantage: float, loss: float
) -> None:
    now, before = torch.tensor([math.log(ratio)]), torch.zeros(1)
    found = ppo.surrogate(now, before, torch.tensor([advantage]), 0.2)
    assert float(found) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "clip", "error"),
    [(3.0, None, 2.0), (3.0, 0.5, 2.0), (1.2, 0.5, 0.02), (0.8, 0.1, 0.02)],
)  # fmt: skip
def test_the_error_of_a_clipped_value_is_the_larger_one(
    value: float, clip: float | None, error: float
) -> None:
    """Of a return of 1 and a value of 1 before."""
    one = torch.ones(1)
    assert float(ppo.value_error(torch.tensor([value]), one, one, clip)) == pytest.approx(error)


def test_probabilities_and_entropies_are_those_of_torch() -> None:
    outputs, actions = draw(ROWS, STEPS, 4), torch.arange(ROWS * STEPS).view(ROWS, STEPS) % 4
    chosen = torch.distributions.Categorical(logits=outputs)
    close(ppo.log_probability(outputs, actions, None), chosen.log_prob(actions), 1e-12)
    close(ppo.entropy(outputs, None), chosen.entropy().mean(), 1e-12)
    done, log_std = draw(ROWS, STEPS, 4, seed=2), draw(4, seed=3)
    normal = torch.distributions.Normal(outputs, log_std.exp())
    close(ppo.log_probability(outputs, done, log_std), normal.log_prob(done).sum(-1), 1e-12)
    close(ppo.entropy(outputs, log_std), normal.entropy().sum(-1).mean(), 1e-12)


@pytest.mark.parametrize("discrete", [True, False])
def test_the_loss_is_its_three_terms(discrete: bool) -> None:
    policy = {"clip": 0.1, "value_weight": 0.7, "entropy": 0.3, "value_clip": 0.2}
    made = model(discrete=discrete, policy=policy)
    seen, steps = draw(ROWS, STEPS, 3), (ROWS, STEPS)
    done = torch.randint(4, steps) if discrete else draw(*steps, 4, seed=5)
    worth, before, values, returns = (draw(*steps, seed=n) for n in range(6, 10))
    given = {"advantages": worth, "before": before, "values": values, "returns": returns}
    out = made(seen, targets=done, **given)
    outputs, found, _ = made.read(seen, None, None)
    now = ppo.log_probability(outputs, done, made.log_std)
    assert out.loss is not None
    close(out.losses["task"], ppo.surrogate(now, before, worth, 0.1), 1e-12)
    close(out.losses["value"], 0.7 * ppo.value_error(found, values, returns, 0.2), 1e-12)
    close(out.losses["entropy"], -0.3 * ppo.entropy(outputs, made.log_std), 1e-12)
    close(out.loss, sum(out.losses.values()), 1e-12)
    close(made(seen, targets=done).losses["task"], -now.mean(), 1e-12)


def test_heads_start_orthogonal_and_the_policy_nearly_even() -> None:
    made = build_model("gtrxl", POLICY, width=12, heads=2, layers=1, episodes={"actions": 4})
    assert isinstance(made, PolicyModel)
    for linear, gain in ((made.enter, math.sqrt(2)), (made.actor, 0.01), (made.critic, 1.0)):
        short = (
            linear.weight if linear.weight.shape[0] < linear.weight.shape[1] else linear.weight.T
        )
        close(short @ short.T, gain**2 * torch.eye(len(short)).double(), 1e-6)
        assert not linear.bias.any()


def test_actions_are_drawn_as_often_as_they_are_likely() -> None:
    made, count = model(), 20_000
    outputs = torch.tensor([[0.0, 1.0, -1.0, 0.5]]).double().expand(count, -1)
    noise = torch.rand(count, generator=torch.Generator().manual_seed(0)).double()
    for heat in (1.0, 2.0):
        drawn = made.chosen(outputs, noise, heat).bincount(minlength=4) / count
        close(drawn.double(), (outputs[0] / heat).softmax(-1), 0.02)
    assert (made.chosen(outputs, noise, 0.0) == 1).all()
    numbers = model(discrete=False)
    assert numbers.log_std is not None
    noise = draw(ROWS, 4)
    close(numbers.chosen(outputs[:ROWS], noise, 0.5),
          outputs[:ROWS] + noise * numbers.log_std.exp() / 2, 1e-12)  # fmt: skip


@pytest.mark.parametrize(
    ("member", "options", "kind", "said"),
    [("gtrxl", {"dropout": 0.1}, GeneError, "dropout is not 0"),
     ("gtrxl", {"attention_dropout": 0.1}, GeneError, "attention_dropout is not 0"),
     ("linear", {"drop_path": 0.1}, GeneError, "drop_path is not 0"),
     ("linear", {"embedding_dropout": 0.1}, GeneError, "embedding_dropout is not 0"),
     ("bert", {}, UnsupportedError, "an encoder reads the whole text"),
     ("reformer", {}, UnsupportedError, "not exactly"),
     ("attention", {"mixer": "reformer"}, UnsupportedError, "later tokens move the borders"),
     ("gtrxl", {"policy": {"horizon": 100, "segment": 32}}, ConfigError, "multiple of")],
)  # fmt: skip
def test_what_cannot_be_a_policy_is_refused(
    member: str, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        model(member, **options)
