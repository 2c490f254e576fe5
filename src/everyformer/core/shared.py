"""Tensors that the layers of one pass share, such as angles of positions: made once, by the first.

A stack's pass is `sharing`; ``shared(make, *of)`` there is ``make(*of)`` of the first
call with the same arguments. Tensors are the same if they are one object: layers that continue
states of one `num_tokens` share what they make of it. With gradients, and in a compiler, which
finds what is alike by itself, every call makes its own.
"""

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
Made = dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]]
"""results by function and arguments, with the arguments, whose identities stay theirs so long"""

_made: ContextVar[Made | None] = ContextVar("made", default=None)


def sharing(forward: Callable[P, T]) -> Callable[P, T]:
    """Decorator: the calls of `shared` within one call of ``forward`` share their results."""

    @functools.wraps(forward)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _may_share():
            return forward(*args, **kwargs)
        token = _made.set({})
        try:
            return forward(*args, **kwargs)
        finally:
            _made.reset(token)

    return wrapped


def shared(make: Callable[..., T], *of: Any) -> T:
    """``make(*of)``, which nobody changes in place; ``of``: tensors, and what can be hashed."""
    if not _may_share() or (made := _made.get()) is None:
        return make(*of)
    key = (make, *(id(part) if isinstance(part, Tensor) else _known(part) for part in of))
    if key not in made:
        made[key] = (make(*of), of)
    result: T = made[key][0]
    return result


def _may_share() -> bool:
    return not (torch.compiler.is_dynamo_compiling() or torch.is_grad_enabled())


def _known(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(id(p) if isinstance(p, Tensor) else _known(p) for p in part)
    # sizes that an exported graph leaves open are known by their formulas
    return str(part) if isinstance(part, torch.SymInt) else part


def advanced(num_tokens: Tensor, length: int, padding_mask: Tensor | None = None) -> Tensor:
    """Real tokens (B,) so far: ``num_tokens`` and ``length`` or those of a padding mask."""
    return shared(_sum, num_tokens, length if padding_mask is None else padding_mask)


def _sum(num_tokens: Tensor, more: int | Tensor) -> Tensor:
    return num_tokens + (more.sum(1) if isinstance(more, Tensor) else more)
