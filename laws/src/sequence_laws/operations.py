"""Operations of torch as they run, one by one, for what counts or refuses them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TORCH = ("aten", "prim", "prims", "profiler")
"""namespaces of torch's operators"""
_TAKING = {"index", "index_select", "gather", "embedding", "take"}
"""operations that read of their first operand what they give"""
_PLACING = {"index_put_", "index_copy_", "scatter_"}
"""those that write into their first operand as much as the last one holds"""
_OVERWRITING = {"copy_", "fill_", "zero_"}
"""those that do not read what they write to"""


class Operations(TorchDispatchMode):
    """Shows each operation within it to `see`, after it ran."""

    inside: ClassVar[bool] = False
    """whether operations that run others (registered in Python, torch's composites) are left out
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
    """Counts operations that are no views, and the bytes that they read and write."""

    inside = True

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.read = self.written = 0

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        places = {t.untyped_storage()._cdata for t in given}
        views = all(t.untyped_storage()._cdata in places for t in made)
        if not (given or made) or (views and made and not func._schema.is_mutable):
            return
        self.operations += 1
        name = func._schema.name.partition("::")[2]
        if "empty" in name:
            return
        if name in _PLACING:
            into, *given = given
            self.written += given[-1].numel() * into.element_size()
        else:
            self.written += sum(_bytes(t) for t in made)
        if name.endswith("_like") or name.startswith("new_"):
            return
        if name in _TAKING:
            table, *given = given
            self.read += made[0].numel() * table.element_size()
        if name in _OVERWRITING or func._schema.overload_name.endswith("out"):
            given = [t for t in given if all(t is not out for out in made)]
        self.read += sum(_bytes(t) for t in given)


def _within(func: Any, args: Any, named: Any) -> Callable[..., Any] | None:
    """A call of the operations that ``func`` is made of; None: it is one."""
    tensors = [] if func.namespace in TORCH else _tensors((args, named))
    if tensors:
        device = tensors[0].device.type
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device.upper()))
        return lambda *args, **named: func.redispatch(keys, *args, **named)
    # in inference mode composites arrive whole
    return func.decompose if func._can_decompose() else None


def _tensors(of: Any) -> list[Tensor]:
    return [t for t in tree_leaves(of) if isinstance(t, Tensor)]


def _bytes(t: Tensor) -> int:
    """Bytes of the elements of a tensor; those that a view shows twice count once."""
    steps = [(n, stride) for n, stride in zip(t.shape, t.stride(), strict=True) if stride]
    span = 1 + sum((n - 1) * stride for n, stride in steps)
    return min(t.numel(), math.prod(n for n, _ in steps), span) * t.element_size()
