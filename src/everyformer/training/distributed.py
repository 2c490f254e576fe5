"""Data-parallel training under ``torchrun``, by torch's own DistributedDataParallel.

The global batch is the same pure function of the step on every process, and each takes its rows.
Every process weighs its loss by its share of the scored targets, known without asking the others,
so the averaged gradient is exactly the one that a single process would compute.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class World:
    """This process among those that train together; alone, it is rank 0 of 1."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training steps; its backward pass averages the gradients."""
        if self.size == 1:
            return model
        # members may leave parameters unused in a step (a skipped layer, an unread memory)
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, find_unused_parameters=True)

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def from_first(self, values: Sequence[float]) -> list[float]:
        """The first process's values, on all of them."""
        return self.sum(values if self.first else [0.0] * len(values))

    def share(self, count: int) -> tuple[int, int]:
        """Which of ``count`` rows are this process's: start and stop."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world that ``torchrun`` started this process in, or a world of one.

    Args:
        device: as in `TrainingConfig`; with several accelerators each process takes its own.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    place = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else None)
    if size == 1:
        yield World(place)
        return
    opened = not dist.is_initialized()
    if opened:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(place, dist.get_rank(), dist.get_world_size())
    finally:
        if opened:
            # gloo's threads may still want the GIL to let go of the last tensors, while the group's
            # destructor holds it and waits for them: seen as a hang in torch 2.13
            time.sleep(0.1)
            dist.destroy_process_group()


def pick_device(device: str, local_rank: int | None = None) -> torch.device:
    """``auto`` is an accelerator where there is one, else the CPU.

    Raises:
        ConfigError: torch knows no such device, or it is not on this machine.
    """
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if found is None else found.type
    try:
        place = torch.device(device)
        if local_rank is not None and place.type == "cuda":
            place = torch.device("cuda", local_rank)
            torch.cuda.set_device(place)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{device}' cannot be used here: {reason}") from error
    return place


def without_averaging(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Processes average their gradients once a step: in its ``last`` slice."""
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()
