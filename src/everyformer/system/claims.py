"""Modules are built while every large tensor is looked at before it is made."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sequence_laws.memory import check_memory, is_out_of_memory, out_of_memory

FACTORIES = (
    "empty",
    "empty_strided",
    "full",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "zeros",
)
"""operations of torch that make a tensor of a size that is given"""


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Refuse tensors made inside that do not fit into the memory that is free.

    Raises:
        ResourceError: with the size that was requested and the one there is.
    """
    try:
        with _Watch(what):
            yield
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(what, error) from error


class _Watch(TorchDispatchMode):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        makes = func.overloadpacket.__name__ in FACTORIES
        if makes and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            shape = next((part for part in args if isinstance(part, list | tuple)), ())
            item = (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
            sides = " x ".join(map(str, shape))
            check_memory(
                math.prod(shape) * item, f"{self.what}: a tensor of {sides}", "choose smaller sizes"
            )
        return func(*args, **kwargs)
