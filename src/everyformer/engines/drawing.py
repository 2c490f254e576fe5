"""Random numbers of rows, whichever rows are computed together.

A step's rows may be computed in pieces, one after the other or in several processes at once
(`everyformer.training.step`). Every piece begins with torch's generator on the CPU at the same
place, so that what is drawn for all rows alike (hashes, random features) is the same in each. What
each row has numbers of its own for takes a single one from there, and from that one draws on to
where the rows of the piece begin. On other devices a piece has numbers of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from everyformer.core.leaving import leaves_torch

_piece: ContextVar[tuple[int, int]] = ContextVar("piece", default=(0, 1))
"""first row and number of rows of what is computed now"""
APART = 1_000_003
"""between the seeds of two rows, so that seeds next to each other may be used too"""


@contextmanager
def piece_of_rows(first: int, count: int) -> Iterator[None]:
    """A block, with its backward pass, in which ``count`` rows from ``first`` on are computed."""
    token = _piece.set((first, count))
    try:
        yield
    finally:
        _piece.reset(token)


def draw(limit: int) -> Tensor:
    """A number below ``limit``, the same in all pieces, and which piece this is: (3,) int64."""
    number = torch.randint(limit, (), device="cpu")
    if not torch.compiler.is_compiling():
        return _told(number)
    later: Tensor = _told_later(number)
    return later


def before(size: int, drawn: Sequence[int]) -> int:
    """Entries of other rows before those of a tensor of ``size`` entries, row after row.

    Args:
        drawn: what `draw` gave, as numbers.
    """
    _, first, count = drawn
    return size * first // count


def draw_seed() -> Tensor:
    """A seed (1,) of numbers that are this piece's alone: other pieces have others."""
    drawn = draw(2**62)
    return drawn[:1] + APART * drawn[1:2]


def uniform_rows(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers from 0 to 1 of ``shape``, float32, whose first dimension are rows."""
    if device.type != "cpu" or leaves_torch():
        return torch.rand(shape, device=device)
    drawn = draw(2**62)
    if not torch.compiler.is_compiling():
        return _uniform(drawn, shape)
    numbers: Tensor = _uniform_later(drawn, shape)
    return numbers


def _told(number: Tensor) -> Tensor:
    return torch.tensor([int(number), *_piece.get()])


def _uniform(drawn: Tensor, shape: Sequence[int]) -> Tensor:
    seed, *_ = numbers = drawn.tolist()
    passed = before(shape[0], numbers)
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(passed + shape[0], *shape[1:], generator=generator)[passed:].clone()


# as operators, since a graph has to ask for its piece when it runs
_told_later = torch.library.custom_op("everyformer::told", _told, mutates_args=())
_uniform_later = torch.library.custom_op("everyformer::uniform_rows", _uniform, mutates_args=())
_told_later.register_fake(lambda number: number.new_empty(3))
_uniform_later.register_fake(
    lambda drawn, shape: drawn.new_empty(tuple(shape), dtype=torch.float32)
)
