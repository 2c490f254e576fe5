"""Feed-forwards of single tokens: their equations, and dropout of their hidden channels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from everyformer.genes.feedforward import DENSE, FEEDFORWARDS
from helpers import build_mixer, close, draw, feeds

WIDTH = 6
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu-tanh": lambda h: F.gelu(h, approximate="tanh"),
    "gelu-sigmoid": lambda h: h * torch.sigmoid(1.702 * h),
    "relu": torch.relu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": lambda h: F.gelu(h, approximate="tanh"),
}


@pytest.mark.parametrize("name", DENSE)
def test_a_token_goes_through_two_layers_and_what_is_between(name: str) -> None:
    made = feeds(name, expansion=1.5)(build_mixer("attention", width=WIDTH)).double()
    x = draw(2, 5, WIDTH)
    h = x @ made.up.weight.T + made.up.bias
    if made.gate is None:
        h = ACTIVATIONS[name](h)
    else:
        h = ACTIVATIONS[name](x @ made.gate.weight.T + made.gate.bias) * h
    y, state = made(x)
    close(y, h @ made.down.weight.T + made.down.bias)
    assert state is None
    assert made.up.out_features == 9


@pytest.mark.parametrize("name", ["relu", "sepconv"])
@pytest.mark.parametrize("own", [None, 0.75])
def test_hidden_channels_are_dropped_out(name: str, own: float | None) -> None:
    """By the rate of the layer, or by one of their own; survivors are scaled up."""
    size = 400
    mixer = build_mixer("attention", width=size, causal=True)
    made = feeds(name, 0.25, expansion=1.0, feedforward_dropout=own)(mixer).train()
    with torch.no_grad():
        for linear in (made.up, made.down):
            linear.weight.copy_(torch.eye(size))
            nn.init.zeros_(linear.bias)
        if name == "sepconv":
            for taps in (made.first, made.second):
                taps.zero_()[-1] = 1.0
    torch.manual_seed(0)
    y, _ = made(torch.ones(1, 50, size))
    rate = 0.25 if own is None else own
    assert float((y == 0).double().mean()) == pytest.approx(rate, abs=0.02)
    close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rate)), 1e-6)
    whole, _ = made.eval()(torch.ones(1, 50, size))
    close(whole, torch.ones(1, 50, size), 1e-6)


def test_one_of_all_reads_neighbours() -> None:
    assert [n for n in FEEDFORWARDS.names() if not FEEDFORWARDS.get(n).by_token] == ["sepconv"]
