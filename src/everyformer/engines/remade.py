"""What a training step makes again in its backward pass, instead of keeping it until then.

Norms, activations, gates and feature maps cost little beside the products that read them, and yet
their results are half of what a step keeps. Where code inside `remade` would keep z = noted(f, x),
it keeps x. `by_pieces` does rows in pieces, so that all between two large tensors stays in a cache.

Gradients are those of the plain form; sums over rows are in pieces, too. Compiled graphs stay as
they are, since compilers choose by themselves what to keep, and so do transforms of torch.func.
Hooks of others on saved tensors, as checkpoints set them, go on working.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

LEAST = 2**18
"""entries of a tensor that is worth it: 1 MiB in float32"""
PIECE = 2**18
"""entries of the widest tensor of a piece"""


def worth(x: Tensor) -> bool:
    """True if ``x`` is large and what is made of it would be kept for a backward pass."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.numel() >= LEAST
        and x.requires_grad
        and type(x) is Tensor
        and not torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    )


def noted(f: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """``f(*x)``, a new tensor, for `remade`; ``f`` gives the same whenever it is called."""
    z = f(*x)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        z.made_of = f, x  # type: ignore[attr-defined]
    return z


@contextmanager
def remade(*made: Tensor) -> Iterator[None]:
    """A block in which none of these `noted` tensors is kept, nor a view of one, but what it was
    made of; of other tensors nothing changes."""
    others = torch._C._autograd._top_saved_tensors_default_hooks(False)
    keep, give = (_keep, _give) if others is None else others
    again = {_place(z): _Again(keep, give, *z.made_of) for z in made if hasattr(z, "made_of")}

    def pack(t: Tensor) -> Any:
        found = again.get(_place(t)) if type(t) is Tensor else None
        if found is None:
            return None, keep(t)
        return found.noted(), (t.shape, t.stride(), t.storage_offset())

    def unpack(packed: Any) -> Tensor:
        found, kept = packed
        t: Tensor = give(kept) if found is None else found.z().as_strided(*kept)
        return t

    with saved_tensors_hooks(pack, unpack):
        yield
    for z in made:
        vars(z).pop("made_of", None)


class _Again:
    """f(x) for all that would have kept it: made once a backward pass, held until the last is done;
    ``keep`` and ``give``: how ``x`` is kept."""

    def __init__(self, keep: Any, give: Any, f: Callable[..., Tensor], x: tuple[Tensor, ...]):
        self.keep, self.give, self.f, self.x = keep, give, f, x
        self.kept: list[Any] = []
        self.users = self.left = 0
        self.made: Tensor | None = None

    def noted(self) -> "_Again":
        """Itself, with one more user."""
        if not self.users:
            self.kept, self.x = [self.keep(t) for t in self.x], ()
        self.users = self.left = self.users + 1
        return self

    def z(self) -> Tensor:
        """f(x) for one of the users."""
        if self.made is None:
            with torch.no_grad():
                self.made = self.f(*(self.give(t) for t in self.kept))
        z, self.left = self.made, self.left - 1
        if not self.left:
            self.made, self.left = None, self.users
        return z


def _place(t: Tensor) -> tuple[int, torch.dtype, int]:
    """Which memory it is, whatever part of it, and how often that was changed."""
    return t.untyped_storage()._cdata, t.dtype, t._version


def _keep(t: Tensor) -> tuple[Tensor, int]:
    return t, t._version


def _give(kept: tuple[Tensor, int]) -> Tensor:
    """What was kept; torch itself compares versions only of what no hook has seen."""
    t, version = kept
    if t._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(t.shape)} that the backward pass needs was modified by an "
            "inplace operation after the forward pass: change a copy of it"
        )
    return t


def read(layer: Callable[[Tensor], Tensor], f: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """``layer(f(*x))``, of which ``x`` is kept, not what the layer reads."""
    z = noted(f, *x)
    with remade(z):
        return layer(z)


def by_pieces(f: Callable[..., Tensor], width: int, *x: Tensor) -> Tensor:
    """``f(0, *x)`` (..., c) by rows of all ``x``; ``f(n, *rows)`` begins with the n-th.

    Args:
        width: channels of the widest tensor inside.
    """
    size = max(1, PIECE // width) if x[0].device.type == "cpu" else x[0].numel()
    pieces = zip(*(t.flatten(0, -2).split(size) for t in x), strict=True)
    y = torch.cat([f(n * size, *piece) for n, piece in enumerate(pieces)])
    return y.view(*x[0].shape[:-1], -1)
