"""Training by several processes, which ``torchrun`` starts, or by one.

The global batch is a pure function of the step, of which each process builds its own rows alone.
Every process weighs its loss by its share of the scored targets, which all count together once a
step, so the averaged gradient is exactly the one that a single process would compute.
"""

import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from everyformer.core.devices import pick_device
from everyformer.core.errors import ConfigError, EveryformerError, LostError, PluginError
from everyformer.core.wording import join_names
from everyformer.data.batch import Portion
from everyformer.system.fingerprint import raw_bytes
from everyformer.training.config import Parallel
from everyformer.training.parallel.shared import Replicated
from sequence_laws.foreign import source

WAIT = timedelta(seconds=60)
"""in which all processes of a run must come together"""
LOST = ("gloo", "nccl", "closed by peer", "reset by peer", "broken pipe", "timed out")
"""in what torch says of a process that cannot be reached"""


_found: dict[str, tuple[dist.Store, int, int]] = {}
"""places where processes have met, which stay open for the next time"""
_meetings = itertools.count()


@dataclass(frozen=True)
class Launch:
    """Ranks of this process among those that were started together, as ``torchrun`` sets them."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1


def read_launch() -> Launch:
    """The `Launch` that the environment describes, checked.

    Raises:
        ConfigError: a variable is no number or out of range, or lacks one that belongs to it.
    """
    defaults = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 1}
    result = {
        name: os.environ.get(name, str(default)).strip() for name, default in defaults.items()
    }
    hint = "which torchrun sets: start this with torchrun, or unset what is left of it"
    for name, text in result.items():
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConfigError(
                f"{name} is '{text[:40]}' in the environment and no number that can be, {hint}"
            )
    rank, local, size, port = (int(text) for text in result.values())
    if size < 1 or not rank < size or not local < size or not 0 < port < 2**16:
        raise ConfigError(
            f"the environment says RANK={rank}, LOCAL_RANK={local}, WORLD_SIZE={size} and "
            f"MASTER_PORT={port}, which cannot be, {hint}"
        )
    needed = (
        ("RANK", "MASTER_ADDR", "MASTER_PORT") if size > 1 and not dist.is_initialized() else ()
    )
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise ConfigError(
            f"the environment says WORLD_SIZE={size} but nothing of {' and '.join(missing)}, {hint}"
        )
    return Launch(rank, local, size)


@dataclass(frozen=True)
class World:
    """The processes that train together, as this one sees them; alone, it is rank 0 of 1."""

    device: torch.device
    rank: int = 0
    size: int = 1
    parallel: Parallel = "ddp"
    shards: int | None = None
    """these two as in `TrainingConfig`"""

    @property
    def in_step(self) -> bool:
        """True if a pass needs all processes, each with rows of its own: they gather weights."""
        return self.size > 1 and self.parallel in ("fsdp", "hybrid")

    @property
    def own(self) -> Portion:
        """The portion of a batch whose rows this process reads."""
        return Portion(self.rank, self.size)

    @property
    def holders(self) -> int:
        """Processes that hold one copy of the weights between them.

        Raises:
            ConfigError: they cannot be parted so.
        """
        if not self.in_step:
            return 1
        requested = self.size if self.parallel == "fsdp" else self.shards
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        shards = here if requested is None else requested
        if self.size % shards:
            raise ConfigError(
                f"{self.size} processes cannot be parted into groups of `shards` ({shards}): give "
                f"a number that divides {self.size}"
            )
        return shards

    @property
    def first(self) -> bool:
        """True if this process writes files and talks to the user."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training steps, started alike on all processes; its backward pass
        averages the gradients.

        Raises:
            ConfigError: the weights cannot be split as is set.
        """
        if self.size == 1:
            return model
        if self.parallel == "ddp":
            return Replicated(model, self.device)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), 0)
        from everyformer.training.parallel.sharding import Sharded

        return Sharded(model, self.holders, self.device)

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all processes."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def total(self, values: Tensor) -> Tensor:
        """The sums of a float64 tensor over all processes, on the CPU."""
        summed = self.sum(values.flatten().tolist())
        return torch.tensor(summed, dtype=torch.float64).view_as(values)

    def from_first(self, values: Sequence[float]) -> list[float]:
        """The first process's values, on all of them."""
        return self.sum(values if self.first else [0.0] * len(values))

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in their order, on each of them."""
        if self.size == 1:
            return [value]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, value)
        return every


def check_alike(model: nn.Module, world: World) -> None:
    """Refuse buffers that differ between processes: no gradient brings those together again.

    Raises:
        PluginError: names the first one, and the part of the model that moves it.
    """
    buffers = dict(model.named_buffers())
    if world.size == 1 or not buffers:
        return
    sums = [
        int.from_bytes(hashlib.blake2b(raw_bytes(buffer), digest_size=7).digest())
        for buffer in buffers.values()
    ]
    least = torch.tensor(sums, device=world.device)
    most = least.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    for name, same in zip(buffers, (least == most).tolist(), strict=True):
        if not same:
            part = type(model.get_submodule(name.rpartition(".")[0]))
            raise PluginError(
                f"the buffer '{name}', which {part.__name__} ({source(part)}) moves, differs "
                f"between the {world.size} processes of this run: what moves without a gradient "
                "has to be summed over them once a step (`Mixer.end_step`)"
            )


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world that ``torchrun`` started this process in, or a world of one.

    Args:
        device: as in `TrainingConfig`; with several accelerators each process takes its own.

    Raises:
        ConfigError: the environment contradicts itself.
        LostError: the others cannot be reached, from the start or in the middle.
    """
    launch = read_launch()
    chosen = pick_device(device, launch.local_rank if launch.size > 1 else None)
    if launch.size == 1:
        yield World(chosen)
        return
    opened = not dist.is_initialized()
    if opened:
        _meet(launch, "nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(chosen, dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(x in str(error).lower() for x in LOST)
        if isinstance(error, EveryformerError) or not lost:
            raise
        raise LostError(
            "another process of this run has ended or can no longer be reached, so this one ends "
            "too; the other's own message says why. Go on from the last checkpoint with `resume`"
        ) from error
    finally:
        if opened:
            # gloo's threads may still want the GIL to let go of the last tensors, while the group's
            # destructor holds it and waits for them: seen as a hang in torch 2.13
            time.sleep(0.1)
            dist.destroy_process_group()


def _meet(launch: Launch, backend: str) -> None:
    """Wait until all processes are there, then make them a group."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # torchrun starts fallen processes again beside a store that still holds what they said
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RUN_ID", "RESTART_COUNT")]
    absent = "at least one of them"
    try:
        if where not in _found:
            _found[where] = next(dist.rendezvous("env://", timeout=WAIT))
        found, rank, size = _found[where]
        names = ("everyformer", *attempt, str(next(_meetings)))
        store = dist.PrefixStore("/".join(names), found)
        store.set(str(rank), "here")
        try:
            store.wait([str(other) for other in range(size)], WAIT)
        except RuntimeError:
            missing = [other + 1 for other in range(size) if not store.check([str(other)])]
            absent = f"process {join_names([str(one) for one in missing[:5]])} of {size}"
            raise
    except RuntimeError as error:
        raise LostError(
            f"the {launch.size} processes of this run did not all come together at {where} within "
            f"{WAIT.total_seconds():.0f} s ({absent} is missing): start every one of them, best "
            "with torchrun, and see that this machine reaches that place"
        ) from error
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
