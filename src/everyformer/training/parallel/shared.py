"""Models that several processes train together, and the plainest of them: a copy on each."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Shared(nn.Module, ABC):
    """A model that several processes train together, to be called in training steps.

    Args:
        model: the model, which stays `module`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module: Any = model

    @abstractmethod
    def slice(self, last: bool) -> AbstractContextManager[None]:
        """One slice of a step, forward and backward; gradients are averaged after the last."""


class Replicated(Shared):
    """A whole copy on every process, by torch's DistributedDataParallel."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model)
        # members may leave parameters unused in a step (a skipped layer, an unread memory)
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        ids = [device.index] if device.type == "cuda" else None
        self._copy = DistributedDataParallel(model, device_ids=ids, find_unused_parameters=True)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self._copy(*inputs, **options)

    def slice(self, last: bool) -> AbstractContextManager[None]:
        kept: AbstractContextManager[None] = nullcontext() if last else self._copy.no_sync()
        return kept


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all of its parts, on every process; where it is split, all have to ask."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


@torch.no_grad()
def place(values: Tensor, into: Tensor) -> None:
    """Copy a whole tensor into one that may be split, of which this process keeps its part."""
    if hasattr(into, "full_tensor"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(into, DTensor)
        mesh, where = into.device_mesh, into.placements
        values = distribute_tensor(values.to(into.device), mesh, where, src_data_rank=None)
    into.copy_(values)
