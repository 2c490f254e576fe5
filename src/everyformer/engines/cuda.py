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


def fused(*tensors: Tensor) -> bool:
    """Whether Triton computes an operator on these tensors: on CUDA, without float64."""
    floating = [t for t in tensors if t.is_floating_point()]
    on_device = floating[0].device.type == "cuda" and triton_found()
    return on_device and all(t.dtype in TAKEN for t in floating)


def on_cuda(operation: CustomOpDef, kernels: str, otherwise: Callable[..., Any]) -> None:
    """Lets ``kernels``, "module.function" of `fused`, compute ``operation`` where they can.

    Where they cannot (see `fused`), ``otherwise`` does, which is what it is on other devices.
    """
    if not triton_found():
        return
    module, _, name = kernels.rpartition(".")

    def compute(*arguments: Any) -> Any:
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if not fused(*tensors):
            return otherwise(*arguments)
        # Triton takes a while to load: it waits for the first call
        function = getattr(import_module(f"everyformer.engines.fused.{module}"), name)
        with torch.cuda.device(tensors[0].device):
            return function(*arguments)

    operation.register_kernel("cuda")(compute)
