"""Checkpoints of weights that are split, by torch.distributed.checkpoint, named in this file alone.

Every process writes the parts that it holds to a file of safetensors, in the background and in a
group of its own, from copies; the first one seals and renames the folder when all have written.
Parts are read into any other splitting, or into none, and nothing is unpickled.
"""

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor

from everyformer.core.errors import CheckpointError, unwritable
from everyformer.system.files import written_whole
from everyformer.system.sealed import DamagedError, checksums
from everyformer.training.parallel.world import World
from everyformer.training.storage import PARTS


class Saver:
    """Saving in the background, one save at a time; all processes call its methods alike."""

    def __init__(self, world: World) -> None:
        self._world = world
        # a training step meanwhile has collectives too, which must not meet those of a save
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, "saving")
        self._pending: Future[None] | None = None

    @property
    def first(self) -> bool:
        """True if this process seals what all have written."""
        return self._world.first

    @property
    def busy(self) -> bool:
        """True while a save is under way."""
        return self._pending is not None and not self._pending.done()

    @property
    def failed(self) -> bool:
        """True if the save that is under way went wrong here; `wait` says how."""
        pending = self._pending
        return pending is not None and pending.done() and pending.exception() is not None

    def save(
        self, final: Path, tensors: dict[str, Tensor], seal: Callable[[Path, dict[str, str]], None]
    ) -> None:
        """Begin to write ``tensors``, whole or split, to the folder ``final``.

        Args:
            seal: called by the first process with the unfinished folder, when all have written into
                it, and the sums of the files; what it writes there belongs to the checkpoint.

        Raises:
            UnsavedError: the save before went wrong.
        """
        self.wait()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._pending = self._thread.submit(self._write, final, copies, seal)

    def wait(self) -> None:
        """Wait for the save that is under way.

        Raises:
            UnsavedError: it went wrong, on whichever process.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(
        self, final: Path, tensors: dict[str, Tensor], seal: Callable[[Path, dict[str, str]], None]
    ) -> None:
        first = self._world.first
        with written_whole(final) if first else nullcontext() as made:
            folder: list[Any] = [made]
            dist.broadcast_object_list(folder, 0, group=self._group)
            writer = dcp.HuggingFaceStorageWriter(str(folder[0]), save_distributed=True)
            try:
                dcp.save(tensors, storage_writer=writer, process_group=self._group)
            except dcp.CheckpointException as error:
                raise unwritable(final, _cause(error)) from error
            own = PARTS.format(f"{self._world.rank + 1:05d}")
            sums: list[Any] = [None] * self._world.size
            dist.all_gather_object(sums, checksums(folder[0], own), group=self._group)
            if first:
                seal(folder[0], {name: each for one in sums for name, each in one.items()})
        dist.barrier(group=self._group)


def sizes_of(folder: Path, part: str) -> dict[str, torch.Size]:
    """Shapes of the tensors of a part (model, optimiser, ema) by name; raises as `read_whole`."""
    return {name: about.size for name, about in _index(folder, part).items()}


def read_parts(folder: Path, part: str, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or split, with those of a part that have their names.

    Raises:
        CheckpointError: one is not there, or of another shape.
    """
    named = {f"{part}/{name}": tensor for name, tensor in into.items()}
    reader = dcp.HuggingFaceStorageReader(str(folder))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # each process reads what it needs, and need not ask the others
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.load(named, storage_reader=reader, no_dist=True)
    except dcp.CheckpointException as error:
        raise CheckpointError(f"{folder} does not fit the model: {_cause(error)}") from error


def read_whole(folder: Path, part: str) -> dict[str, Tensor]:
    """All tensors of a part by name, on the CPU.

    Raises:
        DamagedError: a file cannot be read.
    """
    tensors = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in _index(folder, part).items()
    }
    read_parts(folder, part, tensors)
    return tensors


def _index(folder: Path, part: str) -> dict[str, dcp.TensorStorageMetadata]:
    try:
        found = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DamagedError(f"the parts in {folder} cannot be read: {error}") from error
    start = f"{part}/"
    return {
        name.removeprefix(start): about
        for name, about in found.items()
        if name.startswith(start) and isinstance(about, dcp.TensorStorageMetadata)
    }


def _cause(error: dcp.CheckpointException) -> Exception:
    """The first error, of whichever process."""
    first: Any = next(iter(error.failures.values()))[0]
    return Exception(str(first)) if not isinstance(first, Exception) else first
