"""Results that a training step makes again in its backward pass, instead of keeping them.

Norms, activations, gates and feature maps cost little beside the products that read them, and yet
their results are half of what a step keeps. Where code inside `remade` would keep z = noted(f, x),
it keeps x. `by_pieces` works on some rows after the others, so that what is wide stays in a cache.

Gradients are those of the plain form; sums over rows are in pieces, too. Compiled graphs stay as
they are, since compilers choose by themselves what to keep, and so do transforms of torch.func.
Hooks of others on saved tensors, as checkpoints set them, go on working.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from everyformer.core.devices import autocasts
from everyformer.engines.ranges import HALF

LEAST = 2**21
"""entries of a tensor that is worth it: 8 MiB in float32; what is smaller would cost 2% to 10% of a
step's time"""
PIECE = 2**19
"""entries of the widest tensor of a piece"""
NOTHING = nullcontext()


def worth(x: Tensor, least: int | None = None) -> bool:
    """True if ``x`` has ``least`` entries (`LEAST`), and what is made of it would be kept for a
    backward pass."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.numel() >= (LEAST if least is None else least)
        and x.requires_grad
        and not torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    )


def noted(f: Callable[..., Tensor], *x: Tensor, least: int | None = None) -> Tensor:
    """``f(*x)``, a new tensor, for `remade`; ``f`` gives the same whenever it is called."""
    z = f(*x)
    if worth(z, least):
        z.made_of = f, x  # type: ignore[attr-defined]
    return z


def remade(*made: Tensor) -> AbstractContextManager[Any]:
    """A block in which none of these `noted` tensors is kept, nor a view of one, but what it was
    made of; of other tensors nothing changes."""
    if not hasattr(made[0], "made_of"):
        return NOTHING
    others = torch._C._autograd._top_saved_tensors_default_hooks(False)
    keep, give = (_keep, _give) if others is None else others
    again = {_place(z): _Again(keep, give, *z.made_of) for z in made if hasattr(z, "made_of")}

    def pack(t: Tensor) -> Any:
        found = again.get(_place(t)) if type(t) is Tensor else None
        if found is None:
            return None, keep(t)
        return found.used(), (t.shape, t.stride(), t.storage_offset())

    def unpack(packed: Any) -> Any:
        found, kept = packed
        return give(kept) if found is None else found.make().as_strided(*kept)

    return saved_tensors_hooks(pack, unpack)


@dataclass(eq=False)
class _Again:
    """f(x) for all that would keep it: made once a backward pass, held until the last is done."""

    keep: Any
    give: Any
    f: Callable[..., Tensor]
    x: Any
    users: int = 0
    left: int = 0
    z: Tensor | None = None

    def used(self) -> "_Again":
        """This, with one more user."""
        if not self.users:
            self.x = [self.keep(t) for t in self.x]
        self.users = self.left = self.users + 1
        return self

    def make(self) -> Tensor:
        """f(x) for one of the users."""
        if self.z is None:
            with torch.no_grad():
                self.z = self.f(*map(self.give, self.x))
        z, self.left = self.z, self.left - 1
        if not self.left:
            self.z, self.left = None, self.users
        return z


def _place(t: Tensor) -> tuple[int, torch.dtype, int]:
    """Which memory it is, whatever part of it, and how often that was changed."""
    return t.untyped_storage()._cdata, t.dtype, t._version


def _keep(t: Tensor) -> tuple[Tensor, int]:
    return t, t._version


def _give(kept: tuple[Tensor, int]) -> Tensor:
    """The tensor that was kept; torch itself compares versions only of what no hook has seen."""
    t, version = kept
    if t._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(t.shape)} that the backward pass needs was modified by an "
            "inplace operation after the forward pass: change a copy of it"
        )
    return t


def read(layer: Callable[[Tensor], Tensor], f: Callable[..., Tensor], *x: Tensor) -> Tensor:
    """``layer(f(*x))``, of which ``x`` is kept, not what the layer reads, of any size."""
    z = noted(f, *x, least=0)
    with remade(z):
        return layer(z)


def by_pieces(f: Callable[..., Tensor], width: int, *x: Tensor) -> Tensor:
    """``f(0, *x)`` (..., c) by rows of all ``x``; ``f(n, *rows)`` begins with the n-th.

    Args:
        width: channels of the widest tensor inside.
    """
    # other devices have other caches; gradients of pieces would be summed in half precision
    if not worth(x[0]) or not x[0].is_cpu or x[0].dtype in HALF or autocasts("cpu"):
        return f(0, *x)
    size = max(1, PIECE // width)
    pieces = zip(*(t.flatten(0, -2).split(size) for t in x), strict=True)
    y = torch.cat([f(n * size, *piece) for n, piece in enumerate(pieces)])
    return y.view(*x[0].shape[:-1], -1)
