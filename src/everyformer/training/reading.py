"""Reading of held-out data: rows by themselves, windows with what a memory needs, or in order.

`Curves` are losses of a text by position in the segment, and by how much text came before.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import UnsupportedError
from everyformer.core.modules import memories_of
from everyformer.core.outputs import ModelOutput
from everyformer.data.batch import IGNORED, Batch, batched
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.training.parallel.world import World
from everyformer.training.step import forward

Window = tuple[list[Batch], Batch]
"""what a memory reads first, and the batch that is scored"""


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

    Each process reads one in ``world.size``. Where passes need all of them, they make equally many,
    the last ones perhaps for nothing, which is given as None. Without ``remember`` windows are read
    by themselves.
    """
    windows: Iterable[Window]
    segments = segments_ahead(model, dataset) if remember else None
    text = dataset.running_text
    if segments is not None and text is not None:
        windows = text.warmed(size, limit, segments)
    else:
        windows = (([], batch) for batch in dataset.validation_batches(size, limit))
    # one for each process; the last time there may be fewer
    for turn in batched(windows, world.size):
        own = turn[min(world.rank, len(turn) - 1)]
        counts = world.rank < len(turn)
        if not counts and not world.in_step:
            yield None
            continue
        parts, batch = own[0], own[1].to(world.device)
        if segments is None:
            before = torch.zeros(len(batch.targets), dtype=torch.long)
            read = Read(forward(model, batch), batch, before)
        else:
            state = begin(model, len(batch.targets))
            for part in parts:
                state = forward(model, part.to(world.device), state, last=1).state
            read = Read(forward(model, batch, state), batch, state.num_tokens.cpu())
            idle = max(len(ahead) for ahead, _ in turn) - len(parts) if world.in_step else 0
            for _ in range(idle):
                forward(model, batch, begin(model, len(batch.targets)), last=1)
        yield read if counts else None


def segments_ahead(model: nn.Module, dataset: Dataset) -> int | None:
    """How many segments a model with a memory reads before those that it is asked about; None of
    models without one, and of data in no order."""
    memories = memories_of(model)
    if not memories or dataset.running_text is None:
        return None
    return -(-max(memory.ahead for memory in memories) // dataset.length)


def read_in_order(
    model: nn.Module, dataset: TextDataset, streams: int, limit: int | None, world: World
) -> Iterator[Read | None]:
    """The validation part from its start on, in ``streams`` stretches that go on from segment to
    segment; at most ``limit`` segments, or a few more so that all have as many."""
    state = begin(model, streams)
    for number, batch in enumerate(dataset.in_order(streams)):
        if limit is not None and number * streams >= limit:
            return
        batch, before = batch.to(world.device), state.num_tokens.cpu()
        out = forward(model, batch, state)
        state = out.state
        yield Read(out, batch, before)


def begin(model: Any, rows: int) -> Any:
    """An empty state.

    Raises:
        UnsupportedError: the model carries nothing from segment to segment.
    """
    initial: Any = getattr(model, "init_state", None)
    if initial is None:
        raise UnsupportedError("this model carries nothing from one segment to the next")
    return initial(rows)


class Curves:
    """Sums of losses by position; contexts are counted in octaves: 1, 2 to 3, 4 to 7 ... tokens.
    ``each`` takes in the losses of all scored targets, in the order of reading."""

    def __init__(self, length: int, each: list[Tensor] | None = None) -> None:
        self._each = each
        self._offsets = torch.zeros(2, length, dtype=torch.float64)
        self._contexts = torch.zeros(2, 64, dtype=torch.float64)

    def add(self, read: Read) -> None:
        """Take in one scored batch (B, L)."""
        targets = read.batch.targets.cpu()
        logits = read.out.logits.cpu()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses.view(targets.shape).double()
        if self._each is not None:
            self._each.append(losses[targets != IGNORED])
        scored = (targets != IGNORED).double()
        self._offsets += torch.stack((losses.sum(0), scored.sum(0)))
        context = read.before[:, None] + 1 + torch.arange(targets.shape[1])
        octave = context.double().log2().floor().long()
        self._contexts.index_add_(1, octave.flatten(), torch.stack((losses, scored)).flatten(1))

    def by_position(self) -> list[dict[str, Any]]:
        """Mean loss at each position of a segment, from 1 on, in at most 32 groups."""
        length = self._offsets.shape[1]
        size = math.ceil(length / 32)
        return [
            {"from": first + 1, "to": min(first + size, length)} | _mean(self._offsets, first, size)
            for first in range(0, length, size)
            if self._offsets[1, first : first + size].sum() > 0
        ]

    def by_context(self) -> list[dict[str, Any]]:
        """Mean loss of targets by how many tokens of their text were read before."""
        return [
            {"from": 2**n, "to": 2 ** (n + 1) - 1, **_mean(self._contexts, n, 1)}
            for n in range(64)
            if self._contexts[1, n] > 0
        ]


def _mean(sums: Tensor, first: int, size: int) -> dict[str, Any]:
    loss, count = sums[:, first : first + size].sum(1).tolist()
    return {"loss": loss / count, "targets": int(count)}
