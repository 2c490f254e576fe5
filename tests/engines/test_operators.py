"""Operators of a forward pass and its gradients by hand: what is saved, what is left out."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from everyformer.core.errors import UnsupportedError
from everyformer.engines.operators import operator
from everyformer.engines.ranges import fake


def _scaled(x: Tensor, factor: Tensor | None, power: int) -> tuple[Tensor, Tensor, Tensor]:
    """factor x^power, the sum of x, and x^(power - 1), which has no gradient."""
    part = x ** (power - 1)
    return part * x * (1 if factor is None else factor), x.sum(), part


def _gradients(
    factor: Tensor | None, part: Tensor, x: Tensor, total: Tensor, y: Tensor, power: int,
    grad_y: Tensor, grad_total: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    dx = power * part * grad_y * (1 if factor is None else factor)
    dx = dx if grad_total is None else dx + grad_total
    return dx, x.new_empty(0) if factor is None else part * x * grad_y


scaled, _ = operator(
    "tested",
    _scaled,
    _gradients,
    results=("y", "total", "part"),
    inputs=("x", "factor"),
    shapes=lambda x: (fake(x), x.new_empty(()), fake(x)),
    flops=(lambda x, power: power * x[0], lambda x, power: 2 * power * x[0]),
)


def inputs(factor: bool = True) -> list[Tensor | None]:
    x, scale = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [x.requires_grad_(), scale.requires_grad_() if factor else None]


@pytest.mark.parametrize("factor", [True, False])
@pytest.mark.parametrize("used", ["y", "total", "both"])
def test_gradients_are_those_of_what_is_used(factor: bool, used: str) -> None:
    def loss(x: Tensor, factor: Tensor | None, operation) -> Tensor:
        y, total, _ = operation(x, factor, 3)
        return {"y": y.sum(), "total": total, "both": (y * total).sum()}[used]

    given = inputs(factor)
    asked = [t for t in given if t is not None]
    found = (
        torch.autograd.grad(loss(*given, operation), asked, materialize_grads=True)
        for operation in (scaled, _scaled)
    )
    torch.testing.assert_close(*found)


def test_a_result_whose_gradient_is_not_read_has_none() -> None:
    assert [t.requires_grad for t in scaled(*inputs(), 3)] == [True, True, False]


@pytest.mark.parametrize("factor", [True, False])
def test_torch_finds_the_operator_whole(factor: bool) -> None:
    torch.library.opcheck(scaled, (*inputs(factor), 3))


def test_operations_are_counted_both_ways() -> None:
    counter = FlopCounterMode(display=False)
    with counter:
        scaled(*inputs(), 3)[0].sum().backward()
    assert counter.get_total_flops() == 3 * 5 + 2 * 3 * 5


def test_gradients_are_not_derived_again() -> None:
    x, factor = inputs()
    (first,) = torch.autograd.grad(scaled(x, factor, 3)[0].sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="second derivatives"):
        first.sum().backward()
