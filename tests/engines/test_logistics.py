"""Discretised mixtures of logistics: sums to one, torch's own distributions, and the tails."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.distributions import SigmoidTransform, TransformedDistribution, Uniform
from torch.distributions.transforms import AffineTransform

from everyformer.models.logistics import mixture_logits, mixture_losses, parameters_of
from helpers import covering

EVERY = torch.arange(256)


def drawn(*shape: int, channels: int, mixtures: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    size = mixtures * parameters_of(channels)
    made = torch.randn(*shape, size, generator=generator, dtype=torch.float64)
    return made * spread


def test_the_conditional_probabilities_of_colours_sum_to_one_and_multiply_to_the_joint():
    parameters = drawn(4, channels=3, mixtures=5)
    values = torch.tensor([[0, 255, 3], [128, 0, 255], [255, 255, 255], [17, 90, 200]])
    losses = mixture_losses(parameters, values)
    for c in range(3):
        logits = mixture_logits(parameters, values[:, :c], 3)
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(4, dtype=torch.float64))
        torch.testing.assert_close(-logits.gather(-1, values[:, c, None])[:, 0], losses[:, c])


def test_the_joint_of_colours_is_the_sum_over_components_of_products_over_channels():
    mixtures, values = 3, torch.tensor([40, 200, 255])
    parameters = drawn(channels=3, mixtures=mixtures)
    pieces = parameters.view(mixtures, 10)
    x = values / 127.5 - 1
    total = torch.zeros((), dtype=torch.float64)
    for pi, part in zip(pieces[:, 0].softmax(0), pieces, strict=True):
        a, b, c = part[7:].tanh()
        means = [part[1], part[2] + a * x[0], part[3] + b * x[0] + c * x[1]]
        product = pi
        for v, m, s in zip(values.tolist(), means, part[4:7].exp(), strict=True):
            product = product * by_cdf(m, s, v)
        total = total + product
    torch.testing.assert_close(mixture_losses(parameters, values).sum(), -total.log())


def by_cdf(mean: Tensor, scale: Tensor, value: int) -> Tensor:
    """One logistic's mass between the borders of an intensity, by torch.distributions."""
    uniform = Uniform(torch.zeros_like(mean), torch.ones_like(mean))
    transforms = [SigmoidTransform().inv, AffineTransform(mean, scale)]
    logistic = TransformedDistribution(uniform, transforms)
    x = torch.full_like(mean, value / 127.5 - 1)
    upper = torch.ones_like(mean) if value == 255 else logistic.cdf(x + 1 / 255)
    lower = torch.zeros_like(mean) if value == 0 else logistic.cdf(x - 1 / 255)
    return upper - lower


@pytest.mark.parametrize(
    ("mean", "log_scale"), [(-1.3, -3.0), (0.0, -1.0), (0.4, 0.5), (1.0, -3.0)]
)
def test_one_logistic_agrees_with_the_cdf_of_torch_distributions(mean, log_scale):
    parameters = torch.tensor([0.0, mean, log_scale], dtype=torch.float64)
    expected = torch.stack([by_cdf(parameters[1], parameters[2].exp(), v) for v in range(256)])
    got = mixture_losses(parameters.expand(256, 3), EVERY[:, None]).neg().exp()[:, 0]
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-12)


def test_far_from_the_mean_float32_agrees_with_float64():
    """Where the difference of two sigmoids has cancelled to nothing."""
    for mean, value in itertools.product((-1.0, 1.0), (0, 1, 128, 254, 255)):
        parameters = torch.tensor([0.0, mean, -6.5], dtype=torch.float64, requires_grad=True)
        exact = mixture_losses(parameters, torch.tensor([value]))
        low = parameters.detach().float().requires_grad_()
        got = mixture_losses(low, torch.tensor([value]))
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(got.sum(), low)
        (expected,) = torch.autograd.grad(exact.sum(), parameters)
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_scale_is_not_sharper_than_e_to_the_minus_seven():
    sharp, sharper = (torch.tensor([0.0, 0.2, s]) for s in (-7.0, -50.0))
    value = torch.tensor([150])
    assert torch.equal(mixture_losses(sharp, value), mixture_losses(sharper, value))


@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_parameters_of_any_size_have_finite_losses_and_gradients(size):
    parameters = torch.full((20,), size, requires_grad=True)
    losses = mixture_losses(parameters, torch.tensor([0, 128, 255]))
    (gradient,) = torch.autograd.grad(losses.sum(), parameters)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()
    assert mixture_logits(parameters.detach(), torch.tensor([0, 128]), 3).isfinite().all()


def test_autocast_does_not_round_the_probabilities():
    parameters = drawn(7, channels=3, mixtures=4).float()
    values = torch.randint(256, (7, 3), generator=torch.Generator().manual_seed(1))
    expected = mixture_losses(parameters, values)
    with torch.autocast("cpu", torch.bfloat16):
        got = mixture_losses(parameters, values)
        low = mixture_losses(parameters.bfloat16(), values)
    assert torch.equal(got, expected)
    assert low.dtype == torch.float32


@covering(mixtures=[1, 10], spread=[0.0, 1.0, 6.0], dtype=[torch.float32, torch.float64])
def test_the_256_probabilities_of_grey_sum_to_one(mixtures, spread, dtype):
    parameters = drawn(5, 1, channels=1, mixtures=mixtures, spread=spread).to(dtype)
    losses = mixture_losses(parameters.expand(5, 256, -1), EVERY[:, None].expand(5, 256, 1))
    total = losses[..., 0].neg().exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=2e-5)
