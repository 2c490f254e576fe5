"""Cache of a position's tables by distance, from step to step of a stream."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Make = Callable[[Tensor], Tensor]
"""of distances (n,), which fall by one: (H, n, ...)"""


class _Known(NamedTuple):
    """Distances of an earlier call."""

    weights: tuple[Tensor, ...]
    """as they were"""
    of: tuple[torch.dtype, int]
    """their dtype, and the nearest distance"""
    made: Tensor
    """of that distance and those beyond, the nearest last: (H, distances, ...)"""


class Remembered:
    """Cache of one table by distance, which a step would else make again for all distances.

    Without gradients on a CPU a call's results serve the next one, whose distances are more by a
    few. Weights may be changed behind autograd's back, so they are compared number by number.
    """

    def __init__(self) -> None:
        self.known: _Known | None = None

    def of(
        self, make: Make, weights: Sequence[Tensor], count: int, nearest: int, dtype: torch.dtype
    ) -> Tensor:
        """``make`` of ``count`` distances down to the ``nearest``, as it follows from these
        ``weights`` in this dtype: (H, ``count``, ...)."""
        device = weights[0].device
        working = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if working or device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return make(falling(count, nearest, device))
        known = self.known
        if known is None or not self._serves(known, weights, count, (dtype, nearest)):
            room = 1 << (count - 1).bit_length()
            made = make(falling(room, nearest, device)).contiguous()
            kept = tuple(weight.detach().clone() for weight in weights)
            known = self.known = _Known(kept, (dtype, nearest), made)
        return known.made[:, -count:]

    @staticmethod
    def _serves(
        known: _Known, weights: Sequence[Tensor], count: int, of: tuple[torch.dtype, int]
    ) -> bool:
        pairs = zip(known.weights, weights, strict=True)
        fits = known.of == of and known.made.shape[1] >= count
        return fits and all(torch.equal(one, other) for one, other in pairs)


def falling(count: int, nearest: int, device: torch.device) -> Tensor:
    """(``count``,) int64: distances that go down by one to the ``nearest``."""
    return nearest + count - torch.arange(1, count + 1, device=device)
