"""Text in order: for models that carry a memory from one segment to the next.

Row b of B streams of training begins at token b N / B of the N that have a next one, goes on from
segment to segment and from the last token to the first. So every token is read equally often, none
is dropped where the text does not divide, and the segment of a step is a function of its number.
Where a stream comes to the start of the text a new document begins.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from everyformer.data.batch import IGNORED, Batch
from everyformer.data.text import TextDataset


def training_segment(dataset: TextDataset, step: int, size: int) -> Batch:
    """Segment ``step`` of ``size`` streams over the training part.

    Raises:
        DataError: there is nothing to train on.
    """
    count = dataset.training_rows(len(dataset.train)) - 1
    starts = np.arange(size) * count // size
    positions = (starts[:, None] + step * dataset.length + np.arange(dataset.length)) % count
    return _batch(dataset, dataset.train, positions)


def held_out_segments(dataset: TextDataset, streams: int) -> Iterator[Batch]:
    """The validation part in ``streams`` stretches side by side, every target once.

    Stretches are of whole segments but for the last one's end; where a row has nothing more, its
    targets are not scored.
    """
    count, length = len(dataset.validation) - 1, dataset.length
    segments = -(-count // length)
    bounds = np.arange(streams + 1) * segments // streams
    for n in range(int(np.diff(bounds).max())):
        first = (bounds[:-1] + n) * length
        ends = np.minimum(bounds[1:] * length, count)
        positions = first[:, None] + np.arange(length)
        real = torch.from_numpy(positions < ends[:, None])
        batch = _batch(dataset, dataset.validation, np.minimum(positions, count - 1))
        if not dataset.packed:
            # rows begin with an empty state: the start of the text is no other document
            batch = replace(batch, documents=None)
        yield replace(batch, targets=batch.targets.masked_fill(~real, IGNORED))


def warmed_windows(
    dataset: TextDataset, size: int, limit: int | None, before: int
) -> Iterator[tuple[list[Batch], Batch]]:
    """The batches of `TextDataset.validation_batches`, each with ``before`` segments ahead of it.

    What would lie before the start of the text is padding there.
    """
    starts, length = dataset.window_starts(limit)[0], dataset.length
    batches = dataset.validation_batches(size, limit)
    for first, batch in zip(range(0, len(starts), size), batches, strict=True):
        at = starts[first : first + size]
        ahead = []
        for back in range(min(before, -(-at.max() // length)), 0, -1):
            positions = (at - back * length)[:, None] + np.arange(length)
            part = _batch(dataset, dataset.validation, positions.clip(0))
            real = torch.from_numpy(positions >= 0)
            ahead.append(part if bool(real.all()) else replace(part, keep=real))
        yield ahead, batch


def _batch(dataset: TextDataset, tokens: np.ndarray, positions: np.ndarray) -> Batch:
    """Tokens at ``positions`` (B, L) with the next ones as targets."""
    inputs = torch.from_numpy(tokens[positions].astype(np.int64))
    targets = torch.from_numpy(tokens[positions + 1].astype(np.int64))
    begins = torch.from_numpy(positions == 0)
    neighbours = dataset.neighbours_of(tokens, positions)
    # ids of documents: 0 goes on with the one before the segment
    documents = begins.long().cumsum(1)
    if dataset.packed:
        documents = documents + dataset.documents_of(inputs)
    elif not bool(begins.any()):
        return Batch(inputs, targets, neighbours=neighbours)
    return Batch(inputs, targets, documents=documents, neighbours=neighbours)
