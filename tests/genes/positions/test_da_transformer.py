"""DA-Transformer's factors by their properties and by a double loop."""

import math

import pytest
import torch

from everyformer.core.errors import ConfigError
from everyformer.genes.positions.da_transformer import DaTransformer
from helpers import build_mixer

DIRECTIONS = pytest.mark.parametrize("causal", [True, False])


def mixer(causal, **options):
    return build_mixer(
        "attention", width=12, heads=3, causal=causal, position="da-transformer",
        position_options={"spread": 0.7, **options},
    )  # fmt: skip


def factor(distance, alpha, beta, scale=1.0):
    """f, as the paper writes it."""
    return (1 + math.exp(beta)) / (1 + math.exp(beta - alpha * abs(distance) / scale))


def position(alpha, beta):
    made = DaTransformer(width=4, heads=1).double()
    made.alpha.data.fill_(alpha)
    made.beta.data.fill_(beta)
    return made


@pytest.mark.parametrize("alpha", [-2.0, -0.3, 0.0, 0.1, 1.5])
@pytest.mark.parametrize("beta", [-3.0, 0.0, 1.0, 4.0])
def test_factors_equal_their_definition(alpha, beta):
    distances = torch.arange(-40, 41)
    expected = [factor(d, alpha, beta) for d in distances.tolist()]
    got = position(alpha, beta).factors(distances, torch.float64)[0]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("beta", [-2.0, 0.5, 3.0])
def test_factors_are_one_at_home_and_have_the_known_ends(beta):
    far = torch.tensor([0, 10_000])
    near_head = position(-1.0, beta).factors(far, torch.float64)[0].tolist()
    far_head = position(1.0, beta).factors(far, torch.float64)[0].tolist()
    assert near_head == pytest.approx([1.0, 0.0])
    assert far_head == pytest.approx([1.0, 1 + math.exp(beta)])


@DIRECTIONS
def test_attention_equals_a_double_loop(causal):
    made, x = mixer(causal, distance_scale=2.0), torch.randn(2, 9, 12).double()
    q, k, v = (part.detach() for part in made.project(x))
    y = torch.zeros_like(q)
    for b in range(2):
        for h in range(3):
            alpha, beta = made.position.alpha[h].item(), made.position.beta[h].item()
            for i in range(9):
                seen = range(i + 1 if causal else 9)
                scores = [
                    max(float(q[b, h, i] @ k[b, h, j]), 0)
                    * factor(i - j, alpha, beta, 2.0)
                    / 4**0.5
                    for j in seen
                ]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                y[b, h, i] = weights @ v[b, h, : len(scores)]
    torch.testing.assert_close(made(x).y, made.out(y.transpose(1, 2).flatten(2)))


def test_heads_start_from_near_to_far_and_a_scale_of_zero_is_refused():
    assert mixer(True).position.alpha.tolist() == pytest.approx([-0.7, 0.0, 0.7])
    with pytest.raises(ConfigError, match="distance_scale` must be above 0"):
        mixer(True, distance_scale=0.0)
