"""Operations of torch as they run, one by one, for what counts or refuses them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OWN = "everyformer"
"""namespace of this library's operators"""
LOOKUPS = ("embedding", "index", "index_select", "gather")
"""operations that read as much of their first tensor as they give"""


class Operations(TorchDispatchMode):
    """Shows each operation within it to `see`, after it ran."""

    inside: ClassVar[bool] = False
    """whether operations that run others (ones of this library, torch's composites) are left out
    for those"""

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Take note of an operation, the tensors that it was given and those of its result."""
        raise NotImplementedError

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        run = _within(func, args, named) if self.inside else None
        if run is not None:
            with self:
                return run(*args, **named)
        result = func(*args, **named)
        given, made = (_tensors(of) for of in ((args, named), result))
        self.see(func, given, made)
        return result


class Counter(Operations):
    """Counts operations that are no views, and the bytes that they read."""

    inside = True

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes_read = 0

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        places = {t.untyped_storage()._cdata for t in given}
        views = all(t.untyped_storage()._cdata in places for t in made)
        changes = func._schema.is_mutable
        if not (given or made) or (views and made and not changes):
            return
        self.operations += 1
        sizes = [_numbers(t) * t.element_size() for t in given]
        name = func._schema.name.removeprefix("aten::")
        if name == "copy_":
            sizes = sizes[1:]
        elif name in LOOKUPS:
            sizes[0] = min(sizes[0], sum(t.numel() * t.element_size() for t in made))
        self.bytes_read += sum(sizes)


def _within(func: Any, args: Any, named: Any) -> Callable[..., Any] | None:
    """What runs the operations that ``func`` is made of; None: it is one."""
    if func.namespace == OWN:
        device = _tensors((args, named))[0].device.type
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device.upper()))
        return lambda *args, **named: func.redispatch(keys, *args, **named)
    # in inference mode composites arrive whole
    return func.decompose if func._can_decompose() else None


def _tensors(of: Any) -> list[Tensor]:
    return [t for t in tree_leaves(of) if isinstance(t, Tensor)]


def _numbers(t: Tensor) -> int:
    """Numbers that lie apart in memory."""
    apart = (n for n, step in zip(t.shape, t.stride(), strict=True) if step or n == 0)
    count = 1
    for n in apart:
        count *= n
    return count
