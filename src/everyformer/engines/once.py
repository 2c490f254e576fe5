"""Derivatives that exist once: a backward pass by hand has no graph to be derived again.

torch's own `once_differentiable` looks at the incoming gradient alone: where that is a constant, as
of a sum, second derivatives through the saved tensors would be left out without a word.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from everyformer.core.errors import UnsupportedError

Backward = Callable[..., tuple[Tensor | None, ...]]


def once_differentiable(backward: Backward) -> Backward:
    """Decorator of a `backward`: whoever derives its results again gets an `UnsupportedError`."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        # what the results depend on, by which whoever derives them comes here
        read = [t for t in (*gradients, *ctx.saved_tensors) if t is not None]
        with torch.no_grad():
            results = backward(ctx, *gradients)
        return tuple(None if t is None else _Final.apply(t, *read) for t in results)

    return wrapped


def named_once(y: Tensor) -> Tensor:
    """``y``, a result of torch's fused attention; its gradients refuse to be derived in our words.

    Where torch has chosen products of its own, which can be derived again, nothing is changed.
    """
    if torch.compiler.is_compiling():
        return y
    node = y.grad_fn
    if node is not None and "Attention" in node.name():
        node.register_hook(_final)
    return y


def _final(
    gradients: tuple[Tensor | None, ...], _: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if t is None else _Final.apply(t) for t in gradients)


class _Final(torch.autograd.Function):
    """The first of its arguments; it has no derivative by the others."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *read: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        refuse(ctx, gradient)


def refuse(ctx: Any, *gradients: Tensor | None) -> NoReturn:
    """The backward pass of what is a backward pass itself, and so is not derived again."""
    raise UnsupportedError(
        "second derivatives are not supported here: this gradient was computed by hand. Leave "
        "out create_graph=True, or differentiate .reference(x), which is autograd's own"
    )
