"""Reading of held-out data: rows by themselves, windows with what a memory needs, or in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.errors import UnsupportedError
from everyformer.core.outputs import ModelOutput
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.data.streams import held_out_segments, warmed_windows
from everyformer.data.text import TextDataset
from everyformer.genes.memory.base import memories_of
from everyformer.training.distributed import World
from everyformer.training.step import forward


class Read(NamedTuple):
    """A scored batch with the model's output."""

    out: ModelOutput
    batch: Batch
    before: Tensor
    """(B,) tokens of its text that each row had read before its first"""


def read_windows(
    model: nn.Module,
    dataset: Dataset,
    size: int,
    limit: int | None,
    world: World,
    remember: bool = True,
) -> Iterator[Read | None]:
    """Validation batches; a model with a memory first reads what is `Memory.ahead` of each.

    Batches of other processes come as None. Without ``remember`` windows are read by themselves.
    """
    memories = memories_of(model) if remember and isinstance(dataset, TextDataset) else []
    windows: Iterable[tuple[list[Batch], Batch]]
    if memories and isinstance(dataset, TextDataset):
        ahead = max(memory.ahead for memory in memories)
        windows = warmed_windows(dataset, size, limit, -(-ahead // dataset.length))
    else:
        windows = (([], batch) for batch in dataset.validation_batches(size, limit))
    for number, (parts, batch) in enumerate(windows):
        if number % world.size != world.rank:
            yield None
            continue
        batch = batch.to(world.device)
        if not memories:
            before = torch.zeros(len(batch.targets), dtype=torch.long)
            yield Read(forward(model, batch), batch, before)
            continue
        state = begin(model, len(batch.targets))
        for part in parts:
            state = forward(model, part.to(world.device), state, last=1).state
        yield Read(forward(model, batch, state), batch, state.seen.cpu())


def read_in_order(
    model: nn.Module, dataset: TextDataset, streams: int, limit: int | None, world: World
) -> Iterator[Read | None]:
    """The validation part from its start on, in ``streams`` stretches that go on from segment to
    segment; at most ``limit`` segments of each."""
    state = begin(model, streams)
    for number, batch in enumerate(held_out_segments(dataset, streams)):
        if limit is not None and number * streams >= limit:
            return
        batch, before = batch.to(world.device), state.seen.cpu()
        out = forward(model, batch, state)
        state = out.state
        yield Read(out, batch, before)


def begin(model: Any, rows: int) -> Any:
    """An empty state.

    Raises:
        UnsupportedError: the model carries nothing from segment to segment.
    """
    begun: Any = getattr(model, "init_state", None)
    if begun is None:
        raise UnsupportedError("this model carries nothing from one segment to the next")
    return begun(rows)
