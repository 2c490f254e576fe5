"""DA-Transformer's factors by their properties and by a double loop."""

import math
from itertools import product

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


def test_factors_equal_their_definition_and_have_the_known_ends():
    distances = torch.tensor([*range(-40, 41), 300])
    for alpha, beta in product([-2.0, -0.3, 0.0, 0.1, 1.5], [-3.0, 0.0, 1.0, 4.0]):
        made = DaTransformer(width=4, heads=1).double()
        made.alpha.data.fill_(alpha)
        made.beta.data.fill_(beta)
        got = made.factors(distances, torch.float64)[0].tolist()
        assert got == pytest.approx([factor(d, alpha, beta) for d in distances.tolist()])
        if abs(alpha) > 1:
            assert got[-1] == pytest.approx(0 if alpha < 0 else 1 + math.exp(beta))


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
                products = [max(float(q[b, h, i] @ k[b, h, j]), 0) / 4**0.5 for j in seen]
                scores = [p * factor(i - j, alpha, beta, 2) for j, p in enumerate(products)]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                y[b, h, i] = weights @ v[b, h, : len(scores)]
    torch.testing.assert_close(made(x).y, made.out(y.transpose(1, 2).flatten(2)))


def test_heads_start_from_near_to_far_and_a_scale_of_zero_is_refused():
    assert mixer(True).position.alpha.tolist() == pytest.approx([-0.7, 0.0, 0.7])
    with pytest.raises(ConfigError, match="distance_scale` must be above 0"):
        mixer(True, distance_scale=0.0)
