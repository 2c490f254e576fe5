"""The keys with the largest products, exactly, in memory that the number of keys does not change.

    top_k over j of   c_j q_i . k_j + b_j,    low_i <= place_j < high_i

Keys come in blocks. Within the first, of g numbers that lie n / g apart only the largest is looked
at first: the k largest numbers lie in the k groups with the largest maxima, so all others fall
away, twice over; a maximum of strips costs a tenth of a selection. In the next blocks all groups
fall away whose maximum does not exceed the k-th best so far, and what is left waits, so that the
best are selected only as often as the number of keys has doubled. Squared distances are asked as
-|k_j - q_i|^2 = 2 q_i . k_j - |k_j|^2 - |q_i|^2.

Cost: O(L S D) time, O(L k) memory and `BUDGET` numbers. No gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

BLOCK = 8192
"""keys at a time, and more where a larger budget allows it"""
BUDGET = 1 << 22
"""products, and numbers of keys in the dtype of the queries, that are written out at a time; what
fits into caches is fastest"""
GROUP = 8
"""numbers of which the largest is looked at first"""


class Nearest(NamedTuple):
    """The best keys of every query, best first."""

    scores: Tensor
    """(..., L, k); -inf where fewer keys were visible"""
    keys: Tensor
    """(..., L, k) int64 among the keys, anything where the score is -inf"""


def nearest(
    queries: Tensor,
    keys: Tensor,
    count: int,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    places: Tensor | None = None,
    within: tuple[Tensor, Tensor] | None = None,
    budget: int | None = None,
) -> Nearest:
    """The ``count`` best of ``keys`` (..., S, D), of any dtype, for ``queries`` (..., L, D).

    Args:
        count: k; with fewer keys than that, the last scores are -inf.
        bias: (..., S) added to the products of each key. scale: (..., S) times each key.
        places: (..., S) int64 of each key. within: ``low`` and ``high``, (..., L) int64: a query
            sees the keys with low <= place < high alone.
        budget: in place of `BUDGET`; a larger one has longer blocks, whose threads meet less often.

    Leading dimensions are equal; those of ``bias``, ``scale``, ``places`` and ``within`` may be 1.
    """
    lead, length, size = queries.shape[:-2], queries.shape[-2], keys.shape[-2]
    q, k = (t.reshape(-1, *t.shape[-2:]) for t in (queries.detach(), keys.detach()))
    low, high = within if within is not None else (None, None)
    rest = [
        None if t is None else t.detach().expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1])
        for t in (bias, scale, places, low, high)
    ]
    scores, index = _nearest(q, k, min(count, size), *rest, budget or BUDGET)
    shape = (*lead, length, scores.shape[-1])
    scores, index = scores.view(shape), index.view(shape)
    missing = count - shape[-1]
    if missing:
        scores = torch.nn.functional.pad(scores, (0, missing), value=-math.inf)
        index = torch.nn.functional.pad(index, (0, missing))
    return Nearest(scores, index)


@torch.library.custom_op("everyformer::nearest", mutates_args=())
def _nearest(
    q: Tensor,
    k: Tensor,
    count: int,
    bias: Tensor | None,
    scale: Tensor | None,
    places: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
    budget: int,
) -> tuple[Tensor, Tensor]:
    """Of queries (N, L, D) and keys (N, S, D): scores and indices (N, L, count)."""
    scores = q.new_full((*q.shape[:2], count), -math.inf)
    index = torch.zeros(scores.shape, dtype=torch.long, device=q.device)
    size = k.shape[1]
    waiting: dict[tuple[int, int], _Best] = {}
    step = min(size, BLOCK * max(1, budget // BUDGET))
    for first in range(0, size, max(1, step)):
        end = min(first + step, size)
        for n, rows in _pieces(q, step, budget):
            block = k[n, first:end].to(q.dtype)
            if scale is not None:
                block = block * scale[n, first:end, None].to(q.dtype)
            for part in rows:
                s = _products(q[n, part], block, None if bias is None else bias[n, first:end])
                if places is not None and low is not None and high is not None:
                    _hide(s, places[n, None, first:end], low[n, part, None], high[n, part, None])
                if first == 0:
                    waiting[n.start, part.start] = _Best(s, scores[n, part], index[n, part])
                else:
                    waiting[n.start, part.start].meet(s, first)
    for best in waiting.values():
        best.settle()
    return scores, index


def _products(q: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return q @ keys.mT
    return torch.baddbmm(bias[:, None].to(q.dtype), q, keys.mT)


class _Best:
    """The best of the keys that a few queries (N, L) have met, and what may be better yet.

    Among as many keys as there were, as many better ones are expected as are kept: whatever
    exceeds the smallest that is kept waits until there is that much of it.

    Args:
        first: scores (N, L, B) of the first keys. scores, index: (N, L, count), written to.
    """

    def __init__(self, first: Tensor, scores: Tensor, index: Tensor) -> None:
        self._scores, self._index = scores, index
        self._count = scores.shape[-1]
        best = largest(first, min(self._count, first.shape[-1]))
        scores[..., : best.scores.shape[-1]], index[..., : best.keys.shape[-1]] = best
        self._values, self._keys = scores.flatten(0, 1), index.flatten(0, 1)
        self._floor = self._values[:, -1:]
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._selected = False

    def meet(self, scores: Tensor, first: int) -> None:
        """Look at ``scores`` (N, L, B) of the keys from ``first`` on."""
        for row, column, value in _above(scores.flatten(0, 1), self._floor):
            self._waiting.append((row, column + first, value))
        if sum(len(row) for row, _, _ in self._waiting) > self._values.numel():
            self._select()

    def settle(self) -> None:
        """Write the best, best first."""
        if self._waiting:
            self._select()
        if self._selected:
            best = self._values.sort(-1, descending=True)
            self._scores[:] = best.values.view_as(self._scores)
            self._index[:] = self._keys.gather(-1, best.indices).view_as(self._index)

    def _select(self) -> None:
        row, key, value = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._selected = True
        row, order = row.sort()
        counts = row.bincount(minlength=len(self._values))
        # the how manieth of its row each one is
        column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        shape = (len(counts), int(counts.max()) if len(row) else 0)
        values = value.new_full(shape, -math.inf).index_put_((row, column), value[order])
        keys = key.new_zeros(shape).index_put_((row, column), key[order])
        best = torch.cat((self._values, values), -1).topk(self._count, sorted=False)
        self._keys = torch.cat((self._keys, keys), -1).gather(-1, best.indices)
        self._values = best.values
        self._floor = best.values.amin(-1, keepdim=True)


def _above(scores: Tensor, floor: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, columns and values of the numbers of ``scores`` (R, B) above ``floor`` (R, 1)."""
    groups = scores.shape[-1] // GROUP
    whole = groups * GROUP
    if groups:
        most = scores[:, :whole].unflatten(-1, (GROUP, groups)).amax(-2)
        row, group = (most > floor).nonzero(as_tuple=True)
        columns = group[:, None] + torch.arange(0, whole, groups, device=scores.device)
        values = scores.take(row[:, None] * scores.shape[-1] + columns)
        at = (values > floor[row]).flatten().nonzero()[:, 0]
        yield row[at // GROUP], columns.take(at), values.take(at)
    if whole < scores.shape[-1]:
        row, column = (scores[:, whole:] > floor).nonzero(as_tuple=True)
        yield row, column + whole, scores[row, column + whole]


@_nearest.register_fake
def _(q: Tensor, k: Tensor, count: int, *rest: Tensor | int | None) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:2], count)
    return q.new_empty(shape), q.new_empty(shape, dtype=torch.long)


@register_flop_formula(torch.ops.everyformer.nearest)
def _flops(q: torch.Size, k: torch.Size, *rest: object, **_: object) -> int:
    return 2 * q.numel() * k[1]


def _hide(s: Tensor, places: Tensor, low: Tensor, high: Tensor) -> None:
    """Put -inf into the products ``s`` (N, L, S) of keys outside of what their queries see.

    Most keys are seen by all: queries are asked about those before the first such one and behind
    the last alone.
    """
    sure = (places >= low.amax(-2, keepdim=True)) & (places < high.amin(-2, keepdim=True))
    known = sure.all(0).all(0)
    seen = known.nonzero()
    first, last = (0, 0) if seen.numel() == 0 else (int(seen[0]), int(seen[-1]) + 1)
    whole = first == last or not bool(known[first:last].all())
    for part in (slice(None),) if whole else (slice(first), slice(last, None)):
        at = places[..., part]
        if at.shape[-1]:
            s[..., part].masked_fill_((at < low) | (at >= high), -math.inf)


def _pieces(q: Tensor, keys: int, budget: int) -> Iterator[tuple[slice, list[slice]]]:
    """Stretches of the N rows of ``q``, and for each those of its L queries, within the budget."""
    total, length, dim = q.shape
    queries = max(1, min(length, budget // keys))
    rows = max(1, budget // (keys * max(queries, dim)))
    parts = [slice(n, n + queries) for n in range(0, length, queries)]
    for n in range(0, total, rows):
        yield slice(n, n + rows), parts


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
    found = (best[..., None, :] + steps[:, None]).flatten(-2)
    rest = torch.arange(whole, scores.shape[-1], device=scores.device)
    return torch.cat((found, rest.expand(*found.shape[:-1], -1)), -1)
