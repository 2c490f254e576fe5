"""Sizes against the memory there is: what cannot fit is refused before it is claimed.

A machine that runs out of memory does not raise: it swaps, or ends the process without a word. So
modules are built inside `within_memory`, which looks at every large tensor before it is made, and
whoever can tell beforehand what a job takes asks `check_memory`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from everyformer.core.errors import ResourceError
from everyformer.core.words import size

LARGE = 1 << 26
"""bytes from which on a tensor is worth a look at what is free"""
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


def free_memory() -> int:
    """Bytes that this process may still claim: free on the machine, and in its control group."""
    free = _machine_free()
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        group = Path("/sys/fs/cgroup")
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
            free = min(free, left)
        except (OSError, ValueError):
            # no such group, or "max": no limit of its own
            continue
    return max(0, free)


def check_memory(needed: float, what: str, mend: str) -> None:
    """Refuse ``what`` if it takes more than ``needed`` bytes and there are fewer.

    Raises:
        ResourceError: with both numbers, and ``mend``, what to do.
    """
    if needed >= LARGE and needed > (free := free_memory()):
        raise ResourceError(
            f"{what} needs at least {size(needed)} of memory, but {size(free)} are free: {mend}"
        )


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Refuse tensors made inside that do not fit into the memory that is free.

    Raises:
        ResourceError: with the size that was asked for and the one there is.
    """
    try:
        with _Watch(what):
            yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceError(f"{what} does not fit into memory: choose smaller sizes") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused: Python's, numpy's, or torch's on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = ("can't allocate memory", "Storage size calculation overflowed", "negative dimension")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)


class _Watch(TorchDispatchMode):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in FACTORIES and not _is_meta(kwargs.get("device")):
            shape = next((part for part in args if isinstance(part, list | tuple)), ())
            item = (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
            sides = " x ".join(map(str, shape))
            check_memory(
                math.prod(shape) * item, f"{self.what}: a tensor of {sides}", "choose smaller sizes"
            )
        return func(*args, **kwargs)


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"


def _machine_free() -> int:
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(row.split()[1] for row in rows if row.startswith("MemAvailable"))
        return int(kilobytes) << 10
    except (OSError, StopIteration):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62
        return pages * (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1)
