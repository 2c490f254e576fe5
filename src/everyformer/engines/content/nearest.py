"""The keys with the largest products, exactly, in memory that the number of keys does not change.

    top_k over j of   c_j q_i . k_j + b_j,    low_i <= place_j < high_i

Keys come in blocks. Within the first, of g numbers that lie n / g apart only the largest is looked
at first: the k largest numbers lie in the k groups with the largest maxima, so all others fall
away, twice over; a maximum of strips costs a tenth of a selection. For a large k, to which that
leaves too much, a sample of the keys is asked first, of which so many are taken that the last of
them is below the k-th best of all; a query of which that turns out to be wrong is asked again. In
the next blocks only what exceeds the k-th best so far, or the floor that the sample gave, is
collected, and the best of it are selected as often as there are k more. Squared distances are
asked as -|k_j - q_i|^2 = 2 q_i . k_j - |k_j|^2 - |q_i|^2. Few products are written out and sorted
through at once.

Cost: O(L S D) time, O(L k) memory and `BUDGET` numbers. No gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from everyformer.engines.content.best import GROUP, Best, Nearest

BLOCK = 8192
"""keys at a time, and more where a larger budget allows it"""
BUDGET = 1 << 22
"""products, and numbers of keys in the dtype of the queries, that are written out at a time; what
fits into caches is fastest"""
PART = 24
"""keys of a sample that are hoped to be among the best"""
SMALL = 1 << 19
"""products of all queries and keys up to which they are written out at once and sorted through"""
FEW = 16
"""queries that meet long blocks of keys; those of one row as columns beside them, since a product
of many rows has more for threads to share"""


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
    small = len(q) * length * size <= SMALL and scale is None and k.dtype == q.dtype
    if small and not torch.compiler.is_compiling():
        # not through the operator, whose calls cost as much as a few products
        bias, _, places, low, high = rest
        scores, index = _at_once(q, _Keys(k, bias, None, places), min(count, size), low, high)
    else:
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
    given = _Keys(k, bias, scale, places)
    scores, index, short = _search(q, given, count, low, high, budget, sampled=True)
    for n in short.any(-1).nonzero()[:, 0].tolist():
        rows = short[n].nonzero()[:, 0]
        begin, end = (None if t is None else t[n, None, rows] for t in (low, high))
        own = given.at(slice(n, n + 1), slice(None))
        again = _search(q[n, None, rows], own, count, begin, end, budget, sampled=False)
        scores[n, rows], index[n, rows] = again[0][0], again[1][0]
    return scores, index


class _Keys(NamedTuple):
    """Keys (N, S, D) and what goes with them, each (N, S) or None."""

    keys: Tensor
    bias: Tensor | None
    scale: Tensor | None
    places: Tensor | None

    def at(self, rows: slice, keys: slice) -> _Keys:
        """Those of some rows and keys."""
        bias, scale, places = (None if t is None else t[rows, keys] for t in self[1:])
        return _Keys(self.keys[rows, keys], bias, scale, places)


def _at_once(
    q: Tensor, given: _Keys, count: int, low: Tensor | None, high: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scores and indices (N, L, count) of few products, of which not even blocks would pay."""
    if q.shape[1] == 1 and len(q) > 1 and given.keys.shape[1] > BLOCK:
        # by rows of keys as they lie; a single one is left to one core that way
        s = torch.bmm(given.keys, q.mT).mT
        s = s if given.bias is None else s + given.bias[:, None].to(q.dtype)
    else:
        s = _products(q, given.keys, given.bias, q.new_empty(*q.shape[:2], given.keys.shape[1]))
    if given.places is not None and low is not None and high is not None:
        first, last = given.places.aminmax()
        if first < low.amax() or last >= high.amin():
            at = given.places[:, None]
            s.masked_fill_((at < low[..., None]) | (at >= high[..., None]), -math.inf)
    values, index = s.topk(count)
    return values, index


def _search(
    q: Tensor,
    given: _Keys,
    count: int,
    low: Tensor | None,
    high: Tensor | None,
    budget: int,
    *,
    sampled: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and indices (N, L, count), and which queries (N, L) a sample has promised too much."""
    scores = q.new_full((*q.shape[:2], count), -math.inf)
    index = torch.zeros(scores.shape, dtype=torch.long, device=q.device)
    short = torch.zeros(q.shape[:2], dtype=torch.bool, device=q.device)
    size = given.keys.shape[1]
    step = BLOCK * max(1, budget // BUDGET)
    as_given = given.scale is None and given.keys.dtype == q.dtype
    if as_given and q.shape[1] <= FEW:
        # half of them: products may be written twice
        step = max(step, budget // (2 * max(1, len(q) * q.shape[1])))
    step = min(size, step)
    written = 1 if as_given else q.shape[-1]

    # written again and again: fresh pages of large tensors cost as much as selecting
    space, room = q.new_empty(0), q.new_empty(0)

    def products(keys: slice) -> Iterator[tuple[slice, slice, Tensor]]:
        nonlocal space, room
        for n, parts in _pieces(q, step, written, budget):
            own = given.at(n, keys)
            block = own.keys
            if not as_given:
                room, block = _room(room, block.shape)
                block.copy_(own.keys)
            if own.scale is not None:
                block *= own.scale[..., None].to(q.dtype)
            for part in parts:
                asked = q[n, part]
                space, s = _room(space, (*asked.shape[:2], block.shape[1]))
                _products(asked, block, own.bias, s)
                if own.places is not None and low is not None and high is not None:
                    _hide(s, own.places[:, None], low[n, part, None], high[n, part, None])
                yield n, part, s

    best: dict[tuple[int, int], Best] = {}
    rank, stride = _sample(size, step, count) if sampled else (0, 1)
    if rank:
        for n, part, s in products(slice(None, None, stride)):
            floor = s.topk(rank, sorted=False).values.amin(-1)
            best[n.start, part.start] = Best(q[n, part], size, count, floor)
    for first in range(0, size, max(1, step)):
        for n, part, s in products(slice(first, min(first + step, size))):
            if not first and not rank:
                best[n.start, part.start] = Best(q[n, part], size, count, None)
            best[n.start, part.start].meet(s, first)
    if size:
        for n, parts in _pieces(q, step, written, budget):
            for part in parts:
                short[n, part] = best[n.start, part.start].settle(scores[n, part], index[n, part])
    return scores, index, short


def _room(space: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """``space``, or more of it, and as much of that as ``shape`` asks for."""
    if space.numel() < math.prod(shape):
        space = space.new_empty(math.prod(shape))
    return space, space[: math.prod(shape)].view(shape)


def _sample(size: int, step: int, count: int) -> tuple[int, int]:
    """How many of the best of a sample to take for a floor of all, and how far its keys lie apart.

    0 where a sample would not pay. About ``mean`` of its keys are among the ``count`` best of all;
    more than four deviations above that are for one query in ten thousand.
    """
    if count * GROUP * 2 <= BLOCK or size < 2 * step:
        return 0, 1
    stride = max(1, -(-size // step), count // PART)
    sample = -(-size // stride)
    mean = count * sample / size
    rank = math.ceil(mean + 4 * math.sqrt(mean)) + 2
    return (rank, stride) if 2 * rank <= sample else (0, 1)


def _products(q: Tensor, keys: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """Of queries (N, L, D) and keys (N, S, D), with ``bias`` (N, S), in ``out`` (N, L, S)."""
    length = q.shape[1]
    if len(q) == 1 and length <= FEW and keys.shape[1] > BLOCK:
        # a second column of zeros: with one, it is a product of a matrix and a vector, on one core
        columns = torch.nn.functional.pad(q, (0, 0, 0, max(0, 2 - length))).mT
        found = torch.bmm(keys, columns)[..., :length].mT
        return torch.add(found, 0 if bias is None else bias[:, None].to(q.dtype), out=out)
    if bias is None:
        return torch.bmm(q, keys.mT, out=out)
    return torch.baddbmm(bias[:, None].to(q.dtype), q, keys.mT, out=out)


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


def _pieces(q: Tensor, keys: int, written: int, budget: int) -> Iterator[tuple[slice, list[slice]]]:
    """Stretches of the N rows of ``q``, and for each those of its L queries, within the budget.

    Args:
        written: numbers of each key that are written out.
    """
    total, length = q.shape[:2]
    queries = max(1, min(length, budget // keys))
    rows = max(1, budget // (keys * max(queries, written)))
    parts = [slice(n, n + queries) for n in range(0, length, queries)]
    for n in range(0, total, rows):
        yield slice(n, n + rows), parts
