"""The best of some numbers, met block by block.

Of g numbers that lie n / g apart only the largest is looked at first: the k largest lie in the k
groups with the largest maxima, so all others fall away; a maximum of strips costs a tenth of a
selection.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 8
"""numbers of which the largest is looked at first"""
RARE = 256
"""so many numbers for one that is above the floor: groups are looked at first"""


class Nearest(NamedTuple):
    """The best keys of every query, best first."""

    scores: Tensor
    """(..., L, k); -inf where fewer keys were visible"""
    keys: Tensor
    """(..., L, k) int64 among the keys, anything where the score is -inf"""


class Best:
    """The best of the keys that a few queries have met, and what may be better yet.

    What exceeds a floor, below which none of the best can be, waits beside the best so far, in room
    for as much again; where it is full, the best of both stay, and the least of them is the floor.

    Args:
        queries: (N, L, D). size: keys that there are.
    """

    def __init__(self, queries: Tensor, size: int, count: int) -> None:
        self._count, self._room = count, min(size, 2 * count)
        self._floor: Tensor | None = None
        self._values = queries.new_full((*queries.shape[:2], self._room), -math.inf).flatten(0, 1)
        self._keys = torch.zeros(self._values.shape, dtype=torch.long, device=queries.device)
        self._filled = self._keys.new_zeros(len(self._keys))
        self._ordered, self._rare = False, False

    def meet(self, scores: Tensor, first: int) -> None:
        """Take in the ``scores`` (N, L, B) of the keys from ``first`` on."""
        scores = scores.flatten(0, 1)
        if self._floor is None:
            self._floor = self._values.new_full((len(scores), 1), -math.inf)
            self._join(scores, first)
            return
        above = _above(scores, self._floor, self._rare)
        self._rare = len(above[0]) * RARE < scores.numel()
        if self._put(*above, first):
            return
        self._select()
        row, column, value = above
        better = (value > self._floor[row, 0]).nonzero()[:, 0]
        if not self._put(row[better], column[better], value[better], first):
            self._join(scores, first)

    def finalise(self, scores: Tensor, index: Tensor) -> None:
        """Write the best scores and their indices (N, L, count), best first."""
        if self._ordered:
            best = self._values[:, : self._count], self._keys[:, : self._count]
        else:
            width = max(self._count, int(self._filled.max()))
            values, at = self._values[:, :width].topk(self._count)
            best = values, self._keys.gather(-1, at)
        scores[:], index[:] = best[0].view_as(scores), best[1].view_as(index)

    def _put(self, row: Tensor, column: Tensor, value: Tensor, first: int) -> bool:
        """Let numbers wait, in the order of their rows; False, and nothing done: no room."""
        counts = row.bincount(minlength=len(self._filled))
        filled = self._filled + counts
        if int(filled.max()) > self._room:
            return False
        # where the first of a row goes, less how many are in the rows before
        start = torch.arange(0, self._values.numel(), self._room, device=row.device)
        start += self._filled - (counts.cumsum(0) - counts)
        at = start.index_select(0, row) + torch.arange(len(row), device=row.device)
        self._values.view(-1)[at], self._keys.view(-1)[at] = value, column + first
        self._filled = filled
        self._ordered = False
        return True

    def _join(self, scores: Tensor, first: int) -> None:
        """Put the best of a whole block after the best so far."""
        start = int(self._filled.max())
        best = largest(scores, min(self._count, scores.shape[-1]))
        end = start + best.keys.shape[-1]
        self._values[:, start:end], self._keys[:, start:end] = best.scores, best.keys + first
        self._filled.fill_(end)
        self._ordered = not start
        self._select()

    def _select(self) -> None:
        """Keep the best; what exceeds them alone is looked at from now on."""
        best_values = self._values[:, : self._count]
        if int(self._filled.max()) > self._count:
            best, at = self._values[:, : int(self._filled.max())].topk(self._count, sorted=False)
            self._keys[:, : self._count] = self._keys.gather(-1, at)
            best_values[:] = best
            self._values[:, self._count :] = -math.inf
            self._ordered = False
        # fewer than ``count`` may lie anywhere among them
        self._filled.clamp_(max=self._count)
        self._filled.fill_(int(self._filled.max()))
        assert self._floor is not None
        if int(self._filled.max()) == self._count:
            self._floor = torch.maximum(self._floor, best_values.amin(-1, keepdim=True))


def _above(scores: Tensor, floor: Tensor, rare: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of the numbers of ``scores`` (R, B) above ``floor`` (R, 1).

    In the order of the rows. Where they are ``rare``, groups whose maximum is not fall away first.
    """
    size, groups = scores.shape[-1], scores.shape[-1] // GROUP
    if not rare or size % GROUP:
        at = _true(scores > floor)
        row = at // size
        return row, at - row * size, scores.view(-1).index_select(0, at)
    most = _true(scores.unflatten(-1, (GROUP, groups)).amax(-2) > floor)
    row = most // groups
    at = (most + row * (size - groups))[:, None] + torch.arange(
        0, size, groups, device=scores.device
    )
    values = scores.take(at)
    better = (values > floor.index_select(0, row)).flatten().nonzero()[:, 0]
    row = row.index_select(0, better // GROUP)
    return row, at.take(better) - row * size, values.take(better)


def _true(mask: Tensor) -> Tensor:
    """Indices at which the flat ``mask`` is true; eight of its bytes are read as one number."""
    mask = mask.flatten()
    if len(mask) % 8:
        return mask.nonzero()[:, 0]
    words = mask.view(torch.int64)
    at = words.nonzero()[:, 0]
    bytes_at = words.index_select(0, at).view(torch.bool).nonzero()[:, 0]
    return at.index_select(0, bytes_at >> 3).mul_(8).add_(bytes_at & 7)


def largest(scores: Tensor, count: int) -> Nearest:
    """The ``count`` largest of the last dimension of ``scores``, largest first."""
    candidates = _candidates(scores, count)
    if candidates is None:
        return Nearest(*scores.topk(count))
    values, at = scores.gather(-1, candidates).topk(count)
    return Nearest(values, candidates.gather(-1, at))


def _candidates(scores: Tensor, count: int) -> Tensor | None:
    """Indices among which the ``count`` largest lie; None where looking for them would not pay."""
    groups = scores.shape[-1] // GROUP
    if groups < 2 * count:
        return None
    whole = groups * GROUP
    most = scores[..., :whole].unflatten(-1, (GROUP, groups)).amax(-2)
    best = largest(most, count).keys
    steps = torch.arange(0, whole, groups, device=scores.device)
    index = (best[..., None, :] + steps[:, None]).flatten(-2)
    rest = torch.arange(whole, scores.shape[-1], device=scores.device)
    return torch.cat((index, rest.expand(*index.shape[:-1], -1)), -1)
