"""Operators that Triton computes on CUDA devices, where it is installed; torch does elsewhere."""

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef

from everyformer.engines.ranges import HALF

TAKEN = (torch.float32, *HALF)
"""dtypes that kernels compute, whose sums are taken in float32"""


@functools.cache
def triton_found() -> bool:
    """Whether this torch has CUDA and Triton is installed; no device is asked."""
    return torch.version.cuda is not None and find_spec("triton") is not None


def fused(*arguments: Any) -> bool:
    """Whether Triton can compute on these tensors (others do not matter): on CUDA, none float64."""
    tensors = [a for a in arguments if isinstance(a, Tensor) and a.is_floating_point()]
    on_device = tensors[0].device.type == "cuda" and triton_found()
    return on_device and all(t.dtype in TAKEN for t in tensors)


def on_cuda(
    operation: CustomOpDef,
    kernels: str,
    otherwise: Callable[..., Any],
    takes: Callable[..., bool] = fused,
) -> None:
    """Lets ``kernels``, "module.function" of `fused`, compute ``operation`` where it ``takes`` the
    arguments.

    Where it does not, ``otherwise`` computes it, which is what it is on other devices; and where
    Triton is not installed.
    """
    if not triton_found():
        return
    module, _, name = kernels.rpartition(".")

    def compute(*arguments: Any) -> Any:
        if not takes(*arguments):
            return otherwise(*arguments)
        # Triton takes a while to load: it waits for the first call
        function = getattr(import_module(f"everyformer.engines.fused.{module}"), name)
        with torch.cuda.device(arguments[0].device):
            return function(*arguments)

    operation.register_kernel("cuda")(compute)
