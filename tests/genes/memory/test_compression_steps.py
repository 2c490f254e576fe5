"""What compresses, how its loss is weighed, and its defaults: written out number by number."""

import pytest
import torch

from everyformer.genes.memory.compressive import CompressiveMemory, PastRows

WIDTH = 3


def rows_of(x):
    """Rows (1, n, width) that all stand for something, at 0, 1, 2 ..."""
    length = x.shape[1]
    return PastRows(
        torch.tensor([length]), x, torch.ones(1, length).bool(), torch.arange(length)[None]
    )


def convolved(x, weight, bias, dilation):
    """Width 3 around each row, the neighbours ``dilation`` away; zero beyond either end."""
    made = []
    for t in range(len(x)):
        y = bias.clone()
        for tap in range(3):
            at = t + (tap - 1) * dilation
            if 0 <= at < len(x):
                y = y + weight[:, :, tap] @ x[at]
        made.append(y)
    return made


def compressed(x, made, function, rate):
    """One row of every ``rate``."""
    blocks = range(0, len(x), rate)
    if function == "mean":
        return [sum(x[n : n + rate]) / rate for n in blocks]
    if function == "max":
        return [torch.stack([max(c) for c in zip(*x[n : n + rate], strict=True)]) for n in blocks]
    if function == "dilated":
        for layer, dilation in zip(made.dilated, (1, 2, 4), strict=True):
            x = [y.clamp(min=0) for y in convolved(x, layer.weight, layer.bias, dilation)]
    weight, bias = made.reduce.weight, made.reduce.bias
    return [bias + sum(weight[:, :, r] @ x[n + r] for r in range(rate)) for n in blocks]


@pytest.mark.parametrize("rate", [1, 2, 3])
@pytest.mark.parametrize("function", ["conv", "mean", "max", "dilated"])
def test_a_function_is_its_loops(function, rate):
    torch.manual_seed(0)
    options = {"function": function, "rate": rate}
    made = CompressiveMemory(width=WIDTH, options=options).double().compress
    x = torch.randn(1, 12, WIDTH).double()
    with torch.no_grad():
        found = made(rows_of(x), torch.zeros(1, 12))
        expected = torch.stack(compressed(list(x[0]), made, function, rate))
    assert found.x.shape == (1, 12 // rate, WIDTH)
    torch.testing.assert_close(found.x[0], expected, rtol=1e-10, atol=1e-12)


def test_defaults_are_those_of_the_paper():
    """Rae et al., section 5: convolutions that keep attention, four rows to one."""
    options = CompressiveMemory(width=WIDTH).options
    assert (options.rate, options.function, options.reconstruction) == (4, "conv", "attention")
    assert options.gradient == "none"
