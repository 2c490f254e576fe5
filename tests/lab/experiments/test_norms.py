"""The experiment on the norm's place: its arms, its measures and its verdict."""

import math

import pytest
import torch

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.lab.experiments import base
from everyformer.lab.experiments import transformer as norms
from everyformer.lab.experiments.study import StudySetting

GUESS = math.log(17)


@pytest.fixture(scope="module")
def data():
    return load_dataset(DataConfig(source="copy", length=6, symbols=8), "seq2seq")


def test_both_places_of_the_norm_start_from_the_same_weights(data):
    post = norms.make_model(data, "post", 2, seed=3).state_dict()
    pre = norms.make_model(data, "pre", 2, seed=3).state_dict()
    for name, weight in post.items():
        assert torch.equal(weight, pre[name]), name
    assert all(".norm." in f".{name}" for name in pre.keys() - post.keys())


def test_first_gradients_are_largest_in_the_last_layers_post_norm_alone(data):
    post, pre = (norms.gradient_norms(data, residual, 8, seed=0) for residual in norms.RESIDUALS)
    assert len(post) == len(pre) == 8
    assert post[-1] > 1.5 * post[0]
    assert pre[-1] < pre[0]


def test_first_gradients_are_means_over_models_with_batches_of_their_own(data, monkeypatch):
    monkeypatch.setattr(norms, "STARTS", 2)
    found = norms.gradient_norms(data, "post", 2, seed=5)
    expected = torch.zeros(2)
    for start in range(2):
        model = norms.make_model(data, "post", 2, seed=2 * 5 + start)
        weights = [block.feedforward.down.weight for block in model.stack.blocks]
        batch = data.train_batch(start, norms.BATCH, 5)
        loss = model(batch.inputs, targets=batch.targets, mask=batch.mask).loss
        expected += torch.stack([g.norm() for g in torch.autograd.grad(loss, weights)]) / 2
    assert found == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.25])
def test_the_exponent_of_a_power_law_is_found(power):
    values = [3 * depth**power for depth in norms.DEPTHS]
    assert norms.exponent(values) == pytest.approx(power, abs=1e-9)


def test_a_run_without_numbers_counts_as_guessing(data, monkeypatch):
    monkeypatch.setattr(norms, "LAYERS", 1)
    loss, curve = norms.trained(data, "pre", 1e30, 6, 0)
    assert loss == math.log(data.vocabulary)
    assert 1 <= len(curve) < 6
    loss, curve = norms.trained(data, "post, warm-up", 1e-3, 6, 0)
    assert loss != math.log(data.vocabulary)
    assert len(curve) == 6


@pytest.mark.parametrize(
    ("stalled", "rate"),
    [
        ({}, None),
        ({1e-3: 1, 2e-3: 1}, None),
        ({2e-3: 2, 4e-3: 2}, 2e-3),
        ({2e-3: 1, 4e-3: 2}, 4e-3),
    ],
)
def test_the_rate_is_the_lowest_at_which_no_seed_learns(stalled, rate):
    losses = {
        f"loss post, lr {r:g}": [GUESS] * stalled.get(r, 0) + [0.2] * (2 - stalled.get(r, 0))
        for r in norms.RATES
    }
    assert norms.stalling_rate(losses, GUESS) == rate


SEEN = {"post": GUESS, "post, warm-up": 0.5, "pre": 0.3, "pre, warm-up": 0.2}
POWERS, RISES = {"post": 0.1, "pre": -0.5}, {"post": 3.0, "pre": 0.5}


@pytest.mark.parametrize(
    ("losses", "powers", "rises", "holds"),
    [
        ({}, {}, {}, True),
        ({"post": 0.5 * GUESS}, {}, {}, False),
        ({"post, warm-up": 0.6 * GUESS}, {}, {}, False),
        ({"pre": GUESS}, {}, {}, False),
        ({}, {"post": -0.5}, {}, False),
        ({}, {"pre": 0.1}, {}, False),
        ({}, {}, {"post": 1.0}, False),
        ({}, {}, {"pre": 3.0}, False),
    ],
)
def test_the_verdict_follows_from_the_numbers(losses, powers, rises, holds, monkeypatch):
    final, power, rise = SEEN | losses, POWERS | powers, RISES | rises

    def measured(data, residual, layers, seed):
        last = layers ** power[residual]
        return torch.linspace(last / rise[residual], last, layers).tolist()

    def planted(data, arm, rate, steps, seed):
        return final[arm], [GUESS, final[arm]]

    monkeypatch.setattr(norms, "gradient_norms", measured)
    monkeypatch.setattr(norms, "trained", planted)
    (experiment,) = base.find("norms")
    outcome = experiment.run(StudySetting(seeds=2, say=lambda text: None))
    assert outcome.holds is holds
    assert set(outcome.figures) == {"training", "gradients"}
