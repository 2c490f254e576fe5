"""Second derivatives: those of the reference, or one sentence that there are none; never wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer import create_mixer
from everyformer.core.errors import UnsupportedError
from everyformer.engines.once import once_differentiable

HANDMADE = ("aft-full", "aft-local", "aft-simple", "aft-conv", "linear", "performer", "rfa")


def second(f: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((f(x) * weights).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum() + x.pow(3).sum(), x)[0]


@pytest.mark.parametrize("name", HANDMADE)
def test_gradients_made_by_hand_are_not_differentiated_again(name: str) -> None:
    torch.manual_seed(0)
    mixer = create_mixer(name, width=8, heads=2, causal=True, max_length=16).double().eval()
    x, weights = torch.randn(2, 1, 9, 8, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="second derivatives are not supported"):
        second(lambda t: mixer(t).y, x, weights)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"position": "rope"}, {"kv_heads": 1}], ids=str)
def test_fused_attention_is_not_differentiated_again(options: dict[str, Any], causal: bool) -> None:
    torch.manual_seed(0)
    mixer = create_mixer("attention", width=8, heads=2, causal=causal, **options).double()
    x, weights = torch.randn(2, 1, 9, 8, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="second derivatives are not supported"):
        second(lambda t: mixer(t).y, x, weights)
    # and the first ones are what they are without a graph
    x.requires_grad_()
    found = [
        torch.autograd.grad((mixer(x).y * weights).sum(), x, create_graph=graph)[0]
        for graph in (False, True)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["gmlp", "etc", "linear"])
def test_where_there_are_second_derivatives_they_are_right(name: str) -> None:
    torch.manual_seed(0)
    mixer = create_mixer(name, width=8, heads=2, causal=False, max_length=16).double().eval()
    x, weights = torch.randn(2, 1, 9, 8, dtype=torch.float64)
    found = second(lambda t: mixer(t).y, x, weights)
    torch.testing.assert_close(found, second(mixer.reference, x, weights))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return (2 * gradient * ctx.saved_tensors[0],)


def test_a_constant_gradient_does_not_hide_that_there_is_no_second() -> None:
    """torch's own decorator leaves the second term out without a word."""
    x = torch.randn(5, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="second derivatives"):
        second(Square.apply, x, torch.ones(5, dtype=torch.float64))
    x.requires_grad_()
    Square.apply(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
